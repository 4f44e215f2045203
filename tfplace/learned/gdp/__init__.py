"""GDP: a graph network and a placer, in one pass or deciding in order.

`gdp`: a segment-recurrent placer that decides everything at once. `ordered`
changes a placement: it decides clusters one after the other, sees the partial
schedule and what it changes; of the two, `auto` asks it.
"""

from tfplace.learned import Method
from tfplace.learned.gdp import features

# Changes whenever what is seen of a decision does, too.
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
