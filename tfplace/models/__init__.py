"""Real models of the field."""

from tfplace.models.zoo import INDEXED, MODELS, VARIANTS, ZooModel, build

__all__ = ["INDEXED", "MODELS", "VARIANTS", "ZooModel", "build"]
