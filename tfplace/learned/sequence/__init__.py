"""Recurrent placers: the RNN-based placer and the hierarchical placer (HDP)."""

from tfplace.learned import Method
from tfplace.learned.sequence import features

_SEEN = features.signature(types=0)

METHODS = {
  "hierarchical": Method(
    placer="tfplace.learned.sequence.placer:HierarchicalPlacer",
    learner="tfplace.learned.sequence.learners:HierarchicalLearner",
    version=features.VERSION,
    functions={
      "group_logits": _SEEN,
      "logits": {**_SEEN, **features.GROUPING, **features.CHOICES},
      "decode": {**_SEEN, **features.GROUPING, **features.NOISE},
    },
  ),
  "rnn": Method(
    placer="tfplace.learned.sequence.placer:RnnPlacer",
    learner="tfplace.learned.sequence.learners:RnnLearner",
    version=features.VERSION,
    functions={
      "logits": {**_SEEN, **features.CHOICES},
      "decode": {**_SEEN, **features.NOISE},
    },
  ),
}
