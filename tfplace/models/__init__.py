"""Real models of the field."""

from tfplace.models.zoo import MODELS, VARIANTS, ZooModel, build

__all__ = ["MODELS", "VARIANTS", "ZooModel", "build"]
