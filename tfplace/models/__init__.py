"""Model zoo: the models of the placement literature, built by name."""

from tfplace.models.zoo import MODELS, VARIANTS, ZooModel, build

__all__ = ["MODELS", "VARIANTS", "ZooModel", "build"]
