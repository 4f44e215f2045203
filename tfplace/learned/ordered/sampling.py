"""Samples of `ordered`, drawn where they are evaluated (NumPy only)."""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.learned.ordered.decoding import Head, decode
from tfplace.learned.ordered.tables import PartialTables, partial_tables
from tfplace.learned.sampling import Context


class OrderedDrawn(NamedTuple):
  """Evaluated samples with what PPO needs, see `Drawn` and `Samples`."""

  choices: np.ndarray
  step_us: np.ndarray
  observed: np.ndarray
  candidates: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedDraws:
  """Request for samples, see `sampling.Draws`.

  Attributes:
    head: Weights of the policy.
    noise, forced: [B, N, D] and [B, N], see `decode`.
  """

  head: Head
  noise: np.ndarray
  forced: np.ndarray

  def __len__(self) -> int:
    return len(self.noise)

  def part(self, rows: slice) -> "OrderedDraws":
    return OrderedDraws(self.head, self.noise[rows], self.forced[rows])

  def run(self, context: Context) -> OrderedDrawn:
    """Decodes and simulates."""
    tables = context.derived(tables_of)
    samples = decode(tables, self.head, self.noise, self.forced, True)
    step_us = context.step_times(samples.choices)
    return OrderedDrawn(
      samples.choices, step_us, samples.observed, samples.candidates
    )


def tables_of(context: Context) -> PartialTables:
  """Packs the problem for the decoder."""
  return partial_tables(context.decisions)
