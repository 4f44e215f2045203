"""The units that a policy decides on, and draws of their devices. NumPy only.

A decision is one colocation group or, where a graph has more groups than a
policy should decide on, a cluster of them. What is simulated is always the full
graph.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfplace.core.problem import Problem
from tfplace.placers.coarsen import merged
from tfplace.placers.groups import GroupGraph
from tfplace.placers.rules.axes import UNKNOWN, Scopes, find_axes, read_scopes
from tfplace.simulate.links import mean_transfer

# Numbers of clusters that explore together, where there are more decisions. Of
# few clusters some draws are good at once, from random weights too.
EXPLORATION = (4, 16, 64, 256)
# Of the draws of the placer `gdp`, half each. A policy is sure of itself where
# it is wrong, too; hot draws follow it only where it is very sure.
TEMPERATURES = (1.0, 5.0)
# Of a variable with its optimizer's state, where clusters are made (chosen on a
# 12-layer GPT in four microbatches from 0, 1 and 4).
_SENDS = 4.0


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
  """Which decision each op of a problem follows.

  Decisions are numbered in the order in which their work can begin: that of
  the groups' earliest starts, where a variable comes with its first reader.

  Attributes:
    problem: what is placed and on what.
    decision_of: [num_ops] int32 decision of each op.
    base: [num_ops] devices of a placement that choices change: the ops of a
      decision whose choice is the device of most of its work there stay where
      they are. None for choices that begin from nothing.
  """

  problem: Problem
  decision_of: np.ndarray
  base: np.ndarray | None = None

  @property
  def num_decisions(self) -> int:
    return int(self.decision_of.max()) + 1 if len(self.decision_of) else 0

  @functools.cached_property
  def allowed(self) -> np.ndarray:
    """[num_decisions, num_devices] bool: every op of it runs there."""
    shape = (self.num_decisions, self.problem.cluster.num_devices)
    result = np.ones(shape, bool)
    np.logical_and.at(result, self.decision_of, self.problem.allowed)
    return result

  @functools.cached_property
  def time_us(self) -> np.ndarray:
    """[num_decisions, num_devices] float64 sums of the ops' times, of those
    that run there; finite where not `allowed`, too."""
    count = self.num_decisions
    columns = np.nan_to_num(self.problem.time_us).T
    sums = [np.bincount(self.decision_of, times, count) for times in columns]
    return np.stack(sums, axis=1)

  @functools.cached_property
  def as_groups(self) -> Problem:
    """The same problem with decisions as its colocation groups: what a placer
    finds there, decisions can say exactly."""
    problem = self.problem
    if self.num_decisions == problem.num_groups:
      return problem
    graph = dataclasses.replace(
      problem.graph,
      colocation=self.decision_of.astype(problem.graph.colocation.dtype),
      colocation_names=tuple(map(str, range(self.num_decisions))),
    )
    return dataclasses.replace(problem, graph=graph)

  def clusters(self, max_clusters: int) -> np.ndarray:
    """[num_decisions] int32 cluster of each decision, of about
    `max_clusters`."""
    coarse = group_decisions(self.problem, max_clusters).decision_of
    result = np.zeros(self.num_decisions, np.int32)
    result[self.decision_of[::-1]] = coarse[::-1]  # of its first op
    return result

  @functools.cached_property
  def explorations(self) -> tuple[np.ndarray, ...]:
    """[num_decisions] cluster of each decision, in ways that draws of a
    placement take in turn (`sample`)."""
    return tuple(
      self.clusters(size)
      for size in EXPLORATION
      if 2 * size < self.num_decisions
    )

  @functools.cached_property
  def clusterings(self) -> list[np.ndarray]:
    """[num_decisions] cluster of each decision, in all of the ways in which
    draws of a placer take them; none where there are few decisions."""
    found = list(self.explorations)
    return [*found, self.scopes] if found else found

  @functools.cached_property
  def scopes(self) -> np.ndarray:
    """[num_decisions] int32 scope of each decision, by the names of its ops,
    such as one layer of one time step, forward and backward."""
    groups, scopes = self._named
    of_op = scopes.of[groups.problem.group_of]
    result = np.zeros(self.num_decisions, np.int32)
    result[self.decision_of[::-1]] = of_op[::-1]  # of its first op
    return result

  def axes(self, number: int) -> np.ndarray:
    """[number, num_decisions] int32 rank of each decision on the first axes
    that the names of ops tell (layers, time steps, ...), -1 where on none."""
    groups, scopes = self._named
    result = np.full((number, self.num_decisions), UNKNOWN, np.int32)
    found = find_axes(groups, scopes, number)
    for row, axis in zip(result, found, strict=False):
      row[:] = axis[self.scopes]
    return result

  @functools.cached_property
  def _named(self) -> tuple[GroupGraph, Scopes]:
    groups = GroupGraph(self.as_groups)
    return groups, read_scopes(groups)

  def to_devices(self, choices: np.ndarray) -> np.ndarray:
    """[..., num_decisions] devices -> [..., num_ops] int32 devices."""
    choices = np.asarray(choices, np.int32)
    devices = choices[..., self.decision_of]
    if self.base is None:
      return devices
    stays = (choices == self.base_choices)[..., self.decision_of]
    return np.where(stays, self.base, devices).astype(np.int32)

  def to_choices(self, devices: np.ndarray) -> np.ndarray:
    """[num_ops] devices -> [num_decisions] int32 devices.

    A decision whose ops are on several devices takes the allowed one with the
    most op time, and the lowest-numbered of several.
    """
    return self._work_at(devices).argmax(axis=1).astype(np.int32)

  @functools.cached_property
  def base_choices(self) -> np.ndarray:
    """[num_decisions] int32 choices that leave the base as it is; -1 for all
    without one."""
    if self.base is None:
      return np.full(self.num_decisions, -1, np.int32)
    return self.to_choices(self.base)

  @functools.cached_property
  def base_shares(self) -> np.ndarray:
    """[num_decisions, num_devices] float64 share of each decision's work that
    the base has on each device; 0 without one."""
    if self.base is None:
      return np.zeros(self.allowed.shape)
    work = np.maximum(self._work_at(self.base), 0.0)
    return work / np.maximum(work.sum(axis=1, keepdims=True), 1e-12)

  def _work_at(self, devices: np.ndarray) -> np.ndarray:
    """[num_decisions, num_devices] microseconds of the ops that are there, of
    the fastest device for each; -1 where a decision is not allowed."""
    count, number = self.allowed.shape
    time_us = self.problem.fastest_us + 1e-6
    at = self.decision_of.astype(np.int64) * number + devices
    work = np.bincount(at, time_us, count * number).reshape(count, number)
    return np.where(self.allowed, work, -1.0)


def group_decisions(
  problem: Problem, max_decisions: int | None = None
) -> Decisions:
  """One decision per colocation group, or at most about `max_decisions`.

  Groups are merged as in `placers.coarsen`; of a step in microbatches, those of
  one microbatch with each other only, for a cluster of several could follow no
  device of any of them, and the transfers of variables count as work, so that
  what microbatches share is in more than a few clusters.
  """
  parent = np.arange(problem.num_groups)
  if max_decisions is not None and problem.num_groups > max_decisions:
    split: tuple[np.ndarray, ...] = ()
    if problem.graph.num_microbatches > 1:
      split = _microbatches(problem), _variables_us(problem)
    (parent,) = merged(problem, [max_decisions], *split)
  return Decisions(problem, _in_order(problem, parent))


def _microbatches(problem: Problem) -> np.ndarray:
  """[num_groups] microbatch of each group, -1 where its ops are of several or
  of none."""
  microbatch, group_of = problem.graph.microbatch, problem.group_of
  low = np.full(problem.num_groups, problem.graph.num_microbatches)
  high = np.full(problem.num_groups, -1)
  np.minimum.at(low, group_of, microbatch)
  np.maximum.at(high, group_of, microbatch)
  return np.where(low == high, high, -1)


def _variables_us(problem: Problem) -> np.ndarray:
  """[num_groups] microseconds to send each group's variables so often."""
  num_bytes = problem.graph.persistent_bytes * _SENDS
  total = np.bincount(problem.group_of, num_bytes, problem.num_groups)
  return total * mean_transfer(problem.cluster)[0]


def decisions_at(
  problem: Problem, sizes: Iterable[int | None]
) -> list[Decisions]:
  """`group_decisions` at each size; sizes that merge nothing count once."""
  distinct = dict.fromkeys(
    n if n is not None and n < problem.num_groups else None for n in sizes
  )
  return [group_decisions(problem, size) for size in distinct]


def _in_order(problem: Problem, parent: np.ndarray) -> np.ndarray:
  """[num_ops] decision numbers, by the first group of each decision."""
  order = GroupGraph(problem).order
  _, first, inverse = np.unique(
    parent[order], return_index=True, return_inverse=True
  )
  rank = np.empty(len(first), np.int32)
  rank[np.argsort(first, kind="stable")] = np.arange(len(first))
  decision_of_group = np.empty(problem.num_groups, np.int32)
  decision_of_group[order] = rank[inverse.reshape(-1)]
  return decision_of_group[problem.group_of]


def sample(
  logits: np.ndarray,
  number: int,
  rng: np.random.Generator,
  clusterings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> np.ndarray:
  """[number, N] int32 draws from [N, D] logits, by the Gumbel trick.

  Args:
    logits: of each decision.
    number: of placements.
    rng: draws the noise.
    clusterings, temperatures: see `shared_noise`.
  """
  count, devices = logits.shape
  noise = shared_noise(rng, number, count, devices, clusterings, temperatures)
  result = np.empty((number, count), np.int32)
  for row, mine in zip(result, noise, strict=True):
    row[:] = (logits + mine).argmax(axis=-1)
  return result


def shared_noise(
  rng: np.random.Generator,
  number: int,
  count: int,
  devices: int,
  clusterings: Sequence[np.ndarray] = (),
  temperatures: Sequence[float] = (1.0,),
) -> Iterator[np.ndarray]:
  """`number` times [count, devices] float32 Gumbel noise.

  Args:
    rng: draws it.
    number: of placements.
    count: decisions of a placement, N.
    devices: of a decision.
    clusterings: [N] cluster of each decision, in one or several ways, which
      the placements take in turn. Decisions of one cluster get the same noise:
      they move together, yet each one's distribution is the policy's.
    temperatures: of equal shares of the placements, one after the other; above
      1, draws are nearer to even odds.
  """
  for row in range(number):
    of = clusterings[row % len(clusterings)] if clusterings else None
    size = count if of is None else int(of.max(initial=0)) + 1
    noise = rng.gumbel(size=(size, devices)).astype(np.float32)
    noise *= np.float32(temperatures[row * len(temperatures) // number])
    yield noise if of is None else noise[of]


def decoding_noise(
  rng: np.random.Generator,
  samples: int,
  steps: int,
  devices: int,
  clusterings: Sequence[np.ndarray] = (),
) -> np.ndarray:
  """[1 + samples, steps, devices] float32 for a policy that decodes in steps.

  The first row is zeros, for the most probable placement; the others are
  `shared_noise`.
  """
  noise = np.zeros((samples + 1, steps, devices), np.float32)
  drawn = shared_noise(rng, samples, steps, devices, clusterings)
  for row, mine in zip(noise[1:], drawn, strict=True):
    row[:] = mine
  return noise


def greedy_and_samples(
  logits: np.ndarray, samples: int, rng: np.random.Generator
) -> np.ndarray:
  """[1 + samples, N] int32: the most probable choices, then draws.

  Draws by inversion: one random number per decision, where `sample` takes one
  per decision and choice. For many choices.
  """
  count, choices = logits.shape
  weight = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
  bound = np.cumsum(weight, axis=1)
  bound /= bound[:, -1:]
  row = np.arange(count)
  # Rows end to end, each one above the last: sorted, so one search does.
  edges = (bound + row[:, None]).ravel()
  result = np.empty((samples + 1, count), np.int64)
  result[0] = logits.argmax(axis=1)
  for draw in result[1:]:
    at = np.searchsorted(edges, rng.random(count) + row, side="right")
    draw[:] = np.minimum(at - row * choices, choices - 1)
  return result.astype(np.int32)
