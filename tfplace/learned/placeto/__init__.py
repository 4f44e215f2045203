"""Placeto: visits groups in order and re-places one at a time."""

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
