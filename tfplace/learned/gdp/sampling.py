"""Samples of GDP, drawn where they are evaluated (NumPy only)."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfplace.core import symmetry
from tfplace.learned.decisions import group_noise
from tfplace.learned.sampling import Context, Drawn


class Row(NamedTuple):
  """Noise of one sampled placement; without noise, the most probable one.

  Attributes:
    noise: [groups, D] noise of `group_noise`, or None.
    grouping: Index of its grouping, -1 for one group per decision.
    given: [N] devices that replace those drawn, or None.
  """

  noise: np.ndarray | None = None
  grouping: int = -1
  given: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class GdpDraws:
  """Request for samples, see `sampling.Draws`.

  Attributes:
    logits: [N, D] float32.
    rows: One per placement.
  """

  logits: np.ndarray
  rows: tuple[Row, ...]

  def __len__(self) -> int:
    return len(self.rows)

  def part(self, rows: slice) -> "GdpDraws":
    return GdpDraws(self.logits, self.rows[rows])

  def run(self, context: Context) -> Drawn:
    """Draws and simulates; samples get their most probable naming."""
    choices = np.stack([self._choices(row, context) for row in self.rows])
    drawn = [row.noise is not None for row in self.rows]
    choices[drawn] = symmetry.likeliest(
      choices[drawn], self.logits, context.classes
    )
    return Drawn(choices, context.step_times(choices))

  def _choices(self, row: Row, context: Context) -> np.ndarray:
    if row.given is not None:
      return row.given.astype(np.int32)
    logits = self.logits
    if row.noise is not None:
      noise = row.noise
      if row.grouping >= 0:
        noise = noise[context.groupings[row.grouping]]
      logits = logits + noise
    return logits.argmax(axis=1).astype(np.int32)


def gdp_draws(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  groupings: Sequence[np.ndarray],
  best: np.ndarray | None,
) -> GdpDraws:
  """Requests the most probable placement and `number` samples.

  Args:
    logits: [N, D].
    groupings: See `decisions.shared_noise`.
    best: [N] devices that replace the last sample, or None.
  """
  count, devices = logits.shape
  drawn = group_noise(rng, number, count, devices, groupings)
  rows = [
    Row(noise, i % len(groupings) if groupings else -1)
    for i, noise in enumerate(drawn)
  ]
  if best is not None:
    rows[-1] = rows[-1]._replace(given=best)
  return GdpDraws(logits, (Row(), *rows))
