"""Model zoo: the models of the placement literature, built by name."""

from tfplace.models.zoo import INDEXED, MODELS, VARIANTS, ZooModel, build

__all__ = ["INDEXED", "MODELS", "VARIANTS", "ZooModel", "build"]
