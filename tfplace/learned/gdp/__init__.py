"""GDP: a graph network that places in one pass or decision by decision.

`gdp` is a segment-recurrent placer that makes all decisions in one pass.
`ordered` modifies a placement one decision after the other, given the partial
schedule and the base placement; `auto` uses this one.
"""

from tfplace.learned import Method
from tfplace.learned.gdp import features

# Incremented when the inputs of a decision change.
_ORDERED = 100 * features.VERSION + 2
METHODS = {
  "gdp": Method(
    placer="tfplace.learned.gdp.placer:GdpPlacer",
    learner="tfplace.learned.gdp.learner:GdpLearner",
    version=features.VERSION,
    functions={"logits": features.signature(axes=0)},
  ),
  "ordered": Method(
    placer="tfplace.learned.gdp.ordered_placer:OrderedPlacer",
    learner="tfplace.learned.gdp.ordered_learner:OrderedLearner",
    version=_ORDERED,
    functions={"contexts": features.signature(axes=0), "head": {}},
  ),
}
