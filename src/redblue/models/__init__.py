"""The attention shapes of models: `model(name or config.json)`, `list_models()`."""

from redblue.models.catalogue import Model, list_models, model
from redblue.models.config import Layers

__all__ = ["Layers", "Model", "list_models", "model"]
