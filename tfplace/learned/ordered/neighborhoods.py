"""Neighborhoods of `ordered`: decisions that a sample may change."""

from typing import NamedTuple

import numpy as np

from tfplace.learned.ordered.tables import PartialTables

# Temperature of samples that may change everything, and their bonus in nats for
# keeping a decision, which reduces the changes of an overconfident policy. The
# surest come first.
_FIRST = ((0.0, 0.0), (0.0, 1.0), (0.0, 2.0))
_TURNS = ((0.5, 0.0), (0.5, 1.0), (0.25, 0.0), (0.5, 2.0))
_WHOLE = 5  # first samples, which may change everything
_WHOLE_SHARE = 0.05  # of the later ones
_PROMISING_SHARE = 0.3  # of the others: the most promising decisions
_PROMISING = (2, 8, 32)  # how many
_WINDOWS = (8, 32, 96)  # decisions that are consecutive in time
_TEMPERATURES = (0.5, 1.0)  # in a smaller neighborhood
_KEEPING = (0.0, 1.0)


class Move(NamedTuple):
  """Decisions that a sample may change, and its temperature.

  Attributes:
    free: [N] bool decisions that may change; the others keep the base.
    temperature: Temperature of the choices.
    keeping: Bonus in nats for keeping a decision.
  """

  free: np.ndarray
  temperature: float
  keeping: float


class Neighborhoods:
  """Neighborhoods of the decisions of a problem.

  The first samples may change everything. Later ones change the most promising
  decisions, some that are consecutive in time, or one layer, in all
  microbatches or in one.
  """

  def __init__(self, tables: PartialTables) -> None:
    self._number = len(tables.allowed)
    labels = [tables.layer, tables.pair]
    # A label of all decisions, or of each its own, tells nothing.
    self._labels = [
      label
      for label in labels
      if 1 < len(np.unique(label)) < max(2, self._number)
    ]

  def is_whole(self, number: int, rng: np.random.Generator) -> bool:
    """Samples whether a sample, numbered from 0 on, may change everything."""
    return number < _WHOLE or rng.random() < _WHOLE_SHARE

  def whole(self, number: int) -> Move:
    """Returns the move of a sample that may change everything."""
    turns = _FIRST if number < len(_FIRST) else _TURNS
    turn = turns[(number - len(_FIRST)) % len(turns)]
    return Move(np.ones(self._number, bool), *turn)

  def sample(self, promise: np.ndarray, rng: np.random.Generator) -> Move:
    """Samples a smaller neighborhood.

    Args:
      promise: [N] log weight of changing each decision.
    """
    if rng.random() < _PROMISING_SHARE:
      free = _most(promise, int(rng.choice(_PROMISING)), rng)
    else:
      free = self.sample_some(rng)
    return Move(free, rng.choice(_TEMPERATURES), rng.choice(_KEEPING))

  def sample_some(self, rng: np.random.Generator) -> np.ndarray:
    """Samples [N] bool decisions, fewer than all where there are many."""
    center = int(rng.integers(self._number))
    kind = int(rng.integers(1 + len(self._labels)))
    if kind:
      label = self._labels[kind - 1]
      return label == label[center]
    size = int(rng.choice(_WINDOWS))
    at = np.arange(self._number)
    return (at > center - size / 2) & (at <= center + size / 2)


def _most(
  promise: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
  """Samples [N] bool without replacement, in proportion to exp(promise)."""
  order = np.argsort(-(promise + rng.gumbel(size=len(promise))))
  free = np.zeros(len(promise), bool)
  free[order[:count]] = True
  return free
