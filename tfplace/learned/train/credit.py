"""Credit for each decision of a placement, from its simulated schedule.

One step time for thousands of decisions says little about any of them. The
critical path says more: its ops, transfers and waits add up to the step time,
and each belongs to a decision (`simulate.critical_shares`). A decision that
answers for less of it than in the sibling samples gets the credit. What a
decision does to others it does not see, so the shared advantage stays in the
mixture. The papers share one advantage; this is tfplace's own.
"""

import dataclasses

import numpy as np

from tfplace.learned.decisions import Decisions
from tfplace.simulate import Simulator
from tfplace.simulate.critical_path import critical_shares


@dataclasses.dataclass(frozen=True, eq=False)
class Credit:
  """What makes the advantage of a decision of a sample: share * A + own.

  Attributes:
    share: [B, 1] float32 weight of the sample's normalised advantage A.
    own: [B, N] float32.
  """

  share: np.ndarray
  own: np.ndarray


def shared_credit(samples: int, num_decisions: int) -> Credit:
  """Every decision of a sample has the sample's advantage."""
  return Credit(
    np.ones((samples, 1), np.float32),
    np.zeros((samples, num_decisions), np.float32),
  )


def critical_path_credit(
  decisions: Decisions,
  simulator: Simulator,
  choices: np.ndarray,
  weight: float,
) -> Credit:
  """Weighs each decision's part in the critical path against the siblings'.

  The samples are simulated for this once more, whoever judges them. One that
  does not fit or cannot run keeps the shared advantage: its path is not what
  is wrong with it.

  Args:
    decisions: the problem and its units of decision.
    simulator: of the problem.
    choices: [B, N] devices of the samples.
    weight: 0 to 1, of the critical path in the advantage.
  """
  credit = shared_credit(*choices.shape)
  parts = critical_parts(decisions, simulator, choices)
  known = np.isfinite(parts[:, 0])
  if known.sum() < 2:
    return credit
  less = parts[known].mean(axis=0) - parts[known]
  credit.own[known] = weight * less / max(float(less.std()), 1e-12)
  credit.share[known] = 1.0 - weight
  return credit


def critical_parts(
  decisions: Decisions, simulator: Simulator, choices: np.ndarray
) -> np.ndarray:
  """[B, N] part of each decision in the step time; a row sums to 1 times the
  step time over the batch's least; infinite rows where infeasible."""
  problem = decisions.problem
  devices = decisions.to_devices(choices)
  starts = np.empty(devices.shape)
  batch = simulator.run(devices, starts=starts)
  result = np.full(choices.shape, np.inf)
  known = np.flatnonzero(batch.feasible)
  if len(known):
    least = batch.step_time_us[known].min()
    shares = critical_shares(problem, devices[known], starts[known])
    for row, share in zip(known, shares, strict=True):
      of = np.bincount(decisions.decision_of, share, choices.shape[1])
      result[row] = of / least
  return result
