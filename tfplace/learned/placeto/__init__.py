"""Placeto: the groups of ops are visited in order, and each is placed anew."""

from tfplace.learned import Method
from tfplace.learned.placeto import features

METHODS = {
  "placeto": Method(
    placer="tfplace.learned.placeto.placer:PlacetoPlacer",
    learner="tfplace.learned.placeto.learner:PlacetoLearner",
    version=features.VERSION,
    functions={"logits": features.SIGNATURE},
  )
}
