"""Attention shapes of models, from the catalogue or from a config.json: `model`, `list_models`."""

from redblue.catalogue.models.catalogue import Model, list_models, model
from redblue.catalogue.models.config import Layers

__all__ = ["Layers", "Model", "list_models", "model"]
