"""GDP: a graph network that makes all decisions in one pass."""

from tfplace.learned import Method
from tfplace.learned.encoder import features

METHODS = {
  "gdp": Method(
    placer="tfplace.learned.gdp.placer:GdpPlacer",
    learner="tfplace.learned.gdp.learner:GdpLearner",
    version=features.VERSION,
  )
}
