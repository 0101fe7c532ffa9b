"""The attention shapes of models: `model(name or config.json)`, `list_models()`."""

from redblue.catalogue.models.catalogue import Model, list_models, model
from redblue.catalogue.models.config import Layers

__all__ = ["Layers", "Model", "list_models", "model"]
