"""What Placeto's policy sees of a problem: NumPy arrays, no TensorFlow.

The features are the paper's (arXiv 1906.08879): cost and output bytes of each
group, whether it was visited, whether it is the current one, when it starts
relative to the current one, and its device. The paper's one-hot of the device
ties a policy to a number of devices; here the network scores one device at a
time, and the one-hot becomes one flag, "on the device that is scored", beside
the group's cost there. A device's own features are those of GDP.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.protocols import Evaluator
from tfplace.learned import Tensor
from tfplace.learned.decisions import Decisions
from tfplace.learned.exported import PolicyInputs
from tfplace.learned.gdp import features
from tfplace.placers.groups import GroupGraph
from tfplace.placers.tracker import overflow

# Of a policy: changes whenever it must be trained again.
VERSION = 100 * features.VERSION + 1
NODE_FEATURES = 2
DEVICE_FEATURES = features.DEVICE_FEATURES
MAX_SLOWER = 5.0
BYTES_PER_GB = 1e9

# `PlacetoFeatures.tensors()`, then the states of B episodes.
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
  """What does not change in an episode. N groups, D devices.

  Attributes:
    node: [N, NODE_FEATURES] float32: time on the fastest device, output bytes,
      each divided by the graph's maximum.
    on_device: [N, D] float32: time on each device, divided by that device's
      maximum; 0 where not allowed.
    slower: [N, D] float32: logarithm of a group's time on a device over that
      on its fastest, at most MAX_SLOWER; 0 where not allowed.
    device: [D, DEVICE_FEATURES] float32.
    feeds: [N, N] float32: 1 where the column's group feeds the row's.
    ancestors: [N, N] float32: 1 where a path leads from the column's group to
      the row's. Merged groups feed each other in cycles, so that all would be
      ancestors of all: an edge against the visiting order is no step of a path.
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
  """The constant features of a problem, in the order of its decisions."""
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
  """Values, each column divided by its maximum; float32."""
  most = values.max(axis=0, initial=0.0, keepdims=True)
  return (values / np.where(most > 0, most, 1.0)).astype(np.float32)


def _closure(feeds: np.ndarray) -> np.ndarray:
  """[N, N] bool: which groups reach a group, of edges in visiting order."""
  reached = feeds.copy()
  for group in range(len(reached)):  # those that feed it are complete
    reached[group] |= reached[feeds[group]].any(axis=0)
  return reached


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

  Random first placements are drawn from these, not from CPUs.
  """
  allowed = decisions.allowed
  time_us = np.where(allowed, decisions.time_us, np.inf)
  least = time_us.min(axis=1, keepdims=True, initial=np.inf)
  return allowed & (time_us <= least * (1 + 1e-9))
