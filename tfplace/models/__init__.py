"""Real models of the field."""

from tfplace.models.zoo import MODELS, ZooModel, build

__all__ = ["MODELS", "ZooModel", "build"]
