"""Placers of the literature: Placeto, the RNN-based placer and HDP.

Each makes one choice after another and is trained by REINFORCE.
"""

from tfplace.learned import Method
from tfplace.learned.sequence import features, placeto_features

_FOLDER = "tfplace.learned.sequence"

METHODS = {
  "placeto": Method(
    placer=f"{_FOLDER}.placers:PlacetoPlacer",
    learner=f"{_FOLDER}.learners:PlacetoLearner",
    version=placeto_features.VERSION,
    functions={
      "logits": {**placeto_features.SIGNATURE, **placeto_features.STATE}
    },
  ),
  "hierarchical": Method(
    placer=f"{_FOLDER}.placers:HierarchicalPlacer",
    learner=f"{_FOLDER}.learners:HierarchicalLearner",
    version=features.VERSION,
    functions={
      "group_logits": features.SIGNATURE,
      "decode": {
        **features.SIGNATURE,
        **features.GROUPING,
        **features.NOISE,
      },
    },
  ),
  "rnn": Method(
    placer=f"{_FOLDER}.placers:RnnPlacer",
    learner=f"{_FOLDER}.learners:RnnLearner",
    version=features.VERSION,
    functions={"decode": {**features.SIGNATURE, **features.NOISE}},
  ),
}
