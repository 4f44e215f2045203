"""Graph network that modifies a placement one decision after the other."""

from tfplace.learned import Method, features

METHODS = {
  "ordered": Method(
    placer="tfplace.learned.ordered.placer:OrderedPlacer",
    # The last digit is incremented when the inputs of a decision change.
    version=100 * features.VERSION + 3,
  )
}
