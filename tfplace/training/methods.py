"""Learners of the learned strategies."""

import pkgutil
from typing import Any

from tfplace.learned import find_method
from tfplace.training.process import check_training_process

# Strategy -> "module:class" of a `learner.Learner`.
LEARNERS = {
  "gdp": "tfplace.training.encoder.gdp:GdpLearner",
  "ordered": "tfplace.training.encoder.ordered:OrderedLearner",
  "placeto": "tfplace.training.sequence.learners:PlacetoLearner",
  "hierarchical": "tfplace.training.sequence.learners:HierarchicalLearner",
  "rnn": "tfplace.training.sequence.learners:RnnLearner",
}


def learner_type(strategy: str) -> Any:
  """Imports the learner of a strategy.

  Raises:
    TrainingError: The strategy is unknown (the message lists the choices), or
      this is no training process.
  """
  find_method(strategy)
  check_training_process()
  return pkgutil.resolve_name(LEARNERS[strategy])
