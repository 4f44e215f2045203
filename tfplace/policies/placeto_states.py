"""How Placeto looks at placements: what they cost and when each group starts.

One batched simulation per look. The paper's penalty for memory is here too.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.base import Evaluator
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import overflow
from tfplace.policies.decisions import Decisions

BYTES_PER_GB = 1e9


class Look(NamedTuple):
  """What a batch of placements looks like.

  Attributes:
    step_us: [B] float64; infinite where a placement cannot run.
    excess_gb: [B] float64: by how much the fullest device exceeds its memory;
      0 where all fit.
    start: [B, N] float32: when each group's first op that takes time starts,
      as a share of the step time.
  """

  step_us: np.ndarray
  excess_gb: np.ndarray
  start: np.ndarray

  @property
  def feasible_us(self) -> np.ndarray:
    """[B] step times, infinite where memory is exceeded."""
    return np.where(self.excess_gb > 0, np.inf, self.step_us)


class Observer:
  """Looks at placements of one problem's decisions through an evaluator.

  A `Simulator` tells when ops start; of another evaluator (real devices) only
  step times are known, and the starts are those without communication.
  """

  def __init__(self, decisions: Decisions, evaluator: Evaluator) -> None:
    self._decisions = decisions
    self._evaluator = evaluator
    problem, of = decisions.problem, decisions.decision_of
    self._memory = problem.cluster.memory_bytes
    # Ops that take time, all ops of a decision where none does, by decision.
    works = problem.fastest_us > 0
    idle = np.bincount(of, works, decisions.num_decisions) == 0
    ops = np.flatnonzero(works | idle[of])
    self._ops = ops[np.argsort(of[ops], kind="stable")]
    self._first = np.searchsorted(
      of[self._ops], np.arange(decisions.num_decisions)
    )

  def look(self, choices: np.ndarray) -> Look:
    """Evaluates [B, N] devices, which the problem must allow."""
    devices = np.ascontiguousarray(self._decisions.to_devices(choices))
    run = getattr(self._evaluator, "run", None)
    if run is None:
      return self._evaluated(devices)
    starts = np.empty(devices.shape)
    batch = run(devices, starts=starts)
    excess = (batch.peak_memory_bytes - self._memory).max(axis=1)
    return self._look(batch.step_time_us, excess, starts)

  def _evaluated(self, devices: np.ndarray) -> Look:
    problem = self._decisions.problem
    evaluations = self._evaluator.evaluate(devices)
    excess = np.array(
      [
        0.0 if e.feasible else max(overflow(problem, e)[0], 1.0)
        for e in evaluations
      ]
    )
    step_us = np.array([e.step_time_us for e in evaluations])
    starts = np.tile(GroupGraph(problem).op_start_us, (len(devices), 1))
    return self._look(step_us, excess, starts)

  def _look(
    self, step_us: np.ndarray, excess: np.ndarray, starts: np.ndarray
  ) -> Look:
    runs = np.isfinite(step_us) & (step_us > 0)
    share = starts[:, self._ops] / np.where(runs, step_us, 1.0)[:, None]
    first = np.minimum.reduceat(share, self._first, axis=1)
    return Look(
      step_us,
      np.where(runs, np.maximum(excess, 0.0), 0.0) / BYTES_PER_GB,
      np.where(runs[:, None], first, 0.0).astype(np.float32),
    )


def random_choices(
  allowed: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
  """[number, N] int32 devices, each drawn evenly from those allowed."""
  noise = rng.random((number, *allowed.shape))
  return np.where(allowed, noise, -1.0).argmax(axis=-1).astype(np.int32)


def fast_devices(decisions: Decisions) -> np.ndarray:
  """[N, D] bool: where each group takes the least time; at least one device.

  Random first placements are drawn from these: with a CPU among the devices,
  a placement over all of them is tens of times slower than any sensible one.
  """
  problem, allowed = decisions.problem, decisions.allowed
  time_us = np.zeros(allowed.shape)
  np.add.at(time_us, decisions.decision_of, np.nan_to_num(problem.time_us))
  time_us[~allowed] = np.inf
  least = time_us.min(axis=1, keepdims=True, initial=np.inf)
  return allowed & (time_us <= least * (1 + 1e-9))
