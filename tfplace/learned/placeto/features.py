"""Features of Placeto's policy (NumPy only).

Features are those of the paper (arXiv 1906.08879). Its one-hot device is a flag
for the scored device, so that any number of devices works; device features are
GDP's.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.protocols import Evaluator
from tfplace.learned import Tensor
from tfplace.learned.decisions import Decisions
from tfplace.learned.encoder import features
from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.sampling import Context
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import overflow

# Incremented when policies must be retrained.
VERSION = 100 * features.VERSION + 1
NODE_FEATURES = 2
DEVICE_FEATURES = features.DEVICE_FEATURES
MAX_SLOWER = 5.0
BYTES_PER_GB = 1e9

# `PlacetoFeatures.tensors()`, followed by the states of B episodes.
SIGNATURE: dict[str, Tensor] = {
  "node": ((None, NODE_FEATURES), "float32"),
  "on_device": ((None, None), "float32"),
  "slower": ((None, None), "float32"),
  "device": ((None, DEVICE_FEATURES), "float32"),
  "feeds": ((None, None), "float32"),
  "ancestors": ((None, None), "float32"),
  "allowed": ((None, None), "bool"),
  "placement": ((None, None), "int32"),
  "start": ((None, None), "float32"),
  "step": ((None,), "int32"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoFeatures(PolicyInputs):
  """Inputs that are constant during an episode; N groups, D devices.

  Attributes:
    node: [N, NODE_FEATURES] float32 time on the fastest device and output
      bytes, each divided by the graph's maximum.
    on_device: [N, D] float32 time on each device divided by the maximum of that
      device; 0 where not allowed.
    slower: [N, D] float32 log of the time relative to the fastest device, at
      most MAX_SLOWER; 0 where not allowed.
    device: [D, DEVICE_FEATURES] float32.
    feeds: [N, N] float32, 1 where the column's group feeds the row's.
    ancestors: [N, N] float32, 1 where a path leads from the column's group to
      the row's. Paths use only edges in visiting order, because merged groups
      form cycles that would make all groups ancestors of each other.
    allowed: [N, D] bool.
  """

  node: np.ndarray
  on_device: np.ndarray
  slower: np.ndarray
  device: np.ndarray
  feeds: np.ndarray
  ancestors: np.ndarray
  allowed: np.ndarray


def extract(decisions: Decisions) -> PlacetoFeatures:
  """Extracts the constant features of a problem, in decision order."""
  graph, of = decisions.problem.graph, decisions.decision_of
  count, allowed = decisions.num_decisions, decisions.allowed
  on_us = np.where(allowed, decisions.time_us, 0.0)
  fastest = np.where(allowed, on_us, np.inf).min(axis=1, initial=np.inf)
  slower = np.log((on_us + 1e-9) / (fastest[:, None] + 1e-9))
  out_bytes = np.bincount(of, graph.op_output_bytes, count)
  feeds = np.zeros((count, count), bool)
  src, dst = of[graph.edge_src], of[graph.edge_dst]
  feeds[dst[src != dst], src[src != dst]] = True
  return PlacetoFeatures(
    node=np.stack((_scaled(fastest), _scaled(out_bytes)), axis=1),
    on_device=_scaled(on_us),
    slower=np.where(allowed, slower.clip(0, MAX_SLOWER), 0).astype(np.float32),
    device=features.extract(decisions).device,
    feeds=feeds.astype(np.float32),
    ancestors=_closure(np.tril(feeds, -1)).astype(np.float32),
    allowed=allowed,
  )


def _scaled(values: np.ndarray) -> np.ndarray:
  """Divides each column by its maximum."""
  most = values.max(axis=0, initial=0.0, keepdims=True)
  return (values / np.where(most > 0, most, 1.0)).astype(np.float32)


def _closure(feeds: np.ndarray) -> np.ndarray:
  """Returns [N, N] reachability for edges in visiting order."""
  reached = feeds.copy()
  # The rows of groups that feed it are complete.
  for group in range(len(reached)):
    reached[group] |= reached[feeds[group]].any(axis=0)
  return reached


class Look(NamedTuple):
  """Observations of a batch of placements.

  Attributes:
    step_us: [B] float64, infinite where a placement cannot run.
    excess_gb: [B] float64 bytes over capacity on the fullest device, in GB; 0
      where all fit.
    start: [B, N] float32 start of each group's first op that takes time,
      relative to the step time.
  """

  step_us: np.ndarray
  excess_gb: np.ndarray
  start: np.ndarray

  @property
  def feasible_us(self) -> np.ndarray:
    """[B] step times, infinite where memory is exceeded."""
    return np.where(self.excess_gb > 0, np.inf, self.step_us)


class Observer:
  """Observes placements of a problem's decisions through an evaluator.

  A `Simulator` provides op start times. Other evaluators (real devices) provide
  only step times; starts are then those without communication.
  """

  def __init__(self, decisions: Decisions, evaluator: Evaluator) -> None:
    self._decisions = decisions
    self._evaluator = evaluator
    problem, of = decisions.problem, decisions.decision_of
    self._memory = problem.cluster.memory_bytes
    # Groups ops by decision. Ops that take no time count only in decisions
    # where no op takes time.
    works = problem.fastest_us > 0
    idle = np.bincount(of, works, decisions.num_decisions) == 0
    ops = np.flatnonzero(works | idle[of])
    self._ops = ops[np.argsort(of[ops], kind="stable")]
    self._first = np.searchsorted(
      of[self._ops], np.arange(decisions.num_decisions)
    )

  def look(self, choices: np.ndarray) -> Look:
    """Evaluates [B, N] devices, which must be allowed."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Looks:
  """Request to observe placements, see `sampling.Draws`.

  Attributes:
    choices: [B, N] allowed devices.
  """

  choices: np.ndarray

  def __len__(self) -> int:
    return len(self.choices)

  def part(self, rows: slice) -> "Looks":
    return Looks(self.choices[rows])

  def run(self, context: Context) -> Look:
    return context.derived(_observer).look(self.choices)


def _observer(context: Context) -> Observer:
  return Observer(context.decisions, context.evaluator)


def random_choices(
  allowed: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
  """Samples [number, N] int32 devices uniformly from those allowed."""
  noise = rng.random((number, *allowed.shape))
  return np.where(allowed, noise, -1.0).argmax(axis=-1).astype(np.int32)


def fast_devices(decisions: Decisions) -> np.ndarray:
  """Returns [N, D] bool, True for the fastest devices of each group."""
  allowed = decisions.allowed
  time_us = np.where(allowed, decisions.time_us, np.inf)
  least = time_us.min(axis=1, keepdims=True, initial=np.inf)
  return allowed & (time_us <= least * (1 + 1e-9))
