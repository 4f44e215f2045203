"""Decisions of a policy (NumPy only).

A policy makes one decision per colocation group, or per coarse group of a large
graph.
"""

import copy
import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from tfplace.graph.csr import all_of_group, group_sums
from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import merged
from tfplace.placers.rules.axes import Scopes, find_axes, read_scopes
from tfplace.simulate.links import mean_transfer

NEVER = np.float32(-1e9)  # logit of a device that cannot run the decision


# Transfers of each variable, including optimizer state, that count as work in
# coarsening; chosen from 0, 1 and 4 on a 12-layer GPT in four microbatches.
_VARIABLE_SENDS = 4.0
# Numbers of coarse groups that share exploration noise, if there are more
# decisions. With few coarse groups some samples are good at once, even from
# random weights.
_EXPLORATION = (4, 16, 64, 256)


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
  """Assignment of the ops of a problem to decisions.

  Decisions are numbered by the earliest start of their groups; a variable
  starts with its first reader.

  Attributes:
    problem: Problem to place.
    decision_of: [num_ops] int32 decision of each op.
    base: [num_ops] devices of a placement to modify. If the choice of a
      decision is the device of most of its work in the base, its ops keep their
      devices. None if choices define the whole placement.
  """

  problem: Problem
  decision_of: np.ndarray
  base: np.ndarray | None = None

  @property
  def num_decisions(self) -> int:
    return int(self.decision_of.max()) + 1 if len(self.decision_of) else 0

  @functools.cached_property
  def allowed(self) -> np.ndarray:
    """[num_decisions, num_devices] bool, True if all ops can run there."""
    allowed = self.problem.allowed
    return all_of_group(self.decision_of, allowed, self.num_decisions)

  @functools.cached_property
  def time_us(self) -> np.ndarray:
    """[num_decisions, num_devices] float64 time of the ops that run there."""
    times = np.nan_to_num(self.problem.time_us)
    return group_sums(self.decision_of, times, self.num_decisions)

  @functools.cached_property
  def as_groups(self) -> Problem:
    """Same problem with decisions as colocation groups."""
    problem = self.problem
    if self.num_decisions == problem.num_groups:
      return problem
    return dataclasses.replace(problem, groups=self.decision_of)

  def _of_first_op(self, label: np.ndarray) -> np.ndarray:
    """Returns [num_decisions] int32 labels of each decision's first op."""
    result = np.zeros(self.num_decisions, np.int32)
    result[self.decision_of[::-1]] = label[::-1]  # The last assignment wins.
    return result

  @functools.cached_property
  def explorations(self) -> tuple[np.ndarray, ...]:
    """Groupings for exploration, each [num_decisions], used in turn."""
    return tuple(
      self._of_first_op(group_decisions(self.problem, size).decision_of)
      for size in _EXPLORATION
      if 2 * size < self.num_decisions
    )

  @functools.cached_property
  def groupings(self) -> list[np.ndarray]:
    """`explorations` and `scopes`; empty if decisions are few."""
    result = list(self.explorations)
    return [*result, self.scopes] if result else result

  @functools.cached_property
  def scopes(self) -> np.ndarray:
    """[num_decisions] int32 name scope, such as a layer of a time step."""
    groups, scopes = self._named
    return self._of_first_op(scopes.of[groups.problem.group_of])

  def axes(self, number: int) -> np.ndarray:
    """Returns [number, num_decisions] int32 ranks on op-name axes, or -1."""
    groups, scopes = self._named
    result = np.full((number, self.num_decisions), UNKNOWN, np.int32)
    ranks = find_axes(groups, scopes, number)
    for row, axis in zip(result, ranks, strict=False):
      row[:] = axis[self.scopes]
    return result

  @functools.cached_property
  def _named(self) -> tuple[GroupGraph, Scopes]:
    groups = GroupGraph(self.as_groups)
    return groups, read_scopes(groups)

  def based_on(self, base: np.ndarray | None) -> "Decisions":
    """Returns the decisions with another base; shares what is known."""
    result = copy.copy(self)
    for name in ("base_choices", "base_shares"):
      result.__dict__.pop(name, None)
    result.__dict__["base"] = base
    return result

  def to_devices(self, choices: np.ndarray) -> np.ndarray:
    """Maps [..., num_decisions] devices to [..., num_ops] int32."""
    choices = np.asarray(choices, np.int32)
    devices = choices[..., self.decision_of]
    if self.base is None:
      return devices
    stays = (choices == self.base_choices)[..., self.decision_of]
    return np.where(stays, self.base, devices).astype(np.int32)

  def to_choices(self, devices: np.ndarray) -> np.ndarray:
    """Maps [num_ops] devices to [num_decisions] int32.

    A decision whose ops are on several devices gets the allowed device with the
    most op time; ties go to the lowest index.
    """
    return self._work_at(devices).argmax(axis=1).astype(np.int32)

  @functools.cached_property
  def base_choices(self) -> np.ndarray:
    """[num_decisions] int32 choices that keep the base; -1 without a base."""
    if self.base is None:
      return np.full(self.num_decisions, -1, np.int32)
    return self.to_choices(self.base)

  @functools.cached_property
  def base_shares(self) -> np.ndarray:
    """[num_decisions, num_devices] work shares in the base; 0 without."""
    if self.base is None:
      return np.zeros(self.allowed.shape)
    work = np.maximum(self._work_at(self.base), 0.0)
    return work / np.maximum(work.sum(axis=1, keepdims=True), 1e-12)

  def _work_at(self, devices: np.ndarray) -> np.ndarray:
    """Returns [num_decisions, num_devices] op time, -1 if not allowed."""
    count, number = self.allowed.shape
    time_us = self.problem.fastest_us + 1e-6
    at = self.decision_of.astype(np.int64) * number + devices
    work = np.bincount(at, time_us, count * number).reshape(count, number)
    return np.where(self.allowed, work, -1.0)


def group_decisions(
  problem: Problem, max_decisions: int | None = None
) -> Decisions:
  """Makes one decision per group, or at most about `max_decisions`."""
  return decisions_at(problem, [max_decisions])[0]


def decisions_at(
  problem: Problem, sizes: Iterable[int | None]
) -> list[Decisions]:
  """Applies `group_decisions` at each size that merges differently.

  Groups are merged as in `placers.merge`. In a microbatched step only groups
  of the same microbatch are merged, because a coarse group of several
  microbatches could not follow each of them to its device. The transfers of
  variables count as work, so that shared variables are spread over several
  coarse groups.
  """
  distinct = dict.fromkeys(
    n if n and n < problem.num_groups else None for n in sizes
  )
  targets = [size for size in distinct if size]
  split: tuple[np.ndarray, ...] = ()
  if targets and problem.graph.num_microbatches > 1:
    split = _microbatches(problem), _variables_us(problem)
  parents = iter(merged(problem, targets, *split) if targets else [])
  alone, order = np.arange(problem.num_groups), GroupGraph(problem).order
  return [
    Decisions(problem, _in_order(problem, order, next(parents) if n else alone))
    for n in distinct
  ]


def _microbatches(problem: Problem) -> np.ndarray:
  """Returns [num_groups] microbatch; -1 for several or none."""
  microbatch, group_of = problem.graph.microbatch, problem.group_of
  low = np.full(problem.num_groups, problem.graph.num_microbatches)
  high = np.full(problem.num_groups, -1)
  np.minimum.at(low, group_of, microbatch)
  np.maximum.at(high, group_of, microbatch)
  return np.where(low == high, high, -1)


def _variables_us(problem: Problem) -> np.ndarray:
  num_bytes = problem.graph.persistent_bytes * _VARIABLE_SENDS
  total = np.bincount(problem.group_of, num_bytes, problem.num_groups)
  return total * mean_transfer(problem.cluster)[0]


def _in_order(
  problem: Problem, order: np.ndarray, parent: np.ndarray
) -> np.ndarray:
  _, first, inverse = np.unique(
    parent[order], return_index=True, return_inverse=True
  )
  rank = np.empty(len(first), np.int32)
  rank[np.argsort(first, kind="stable")] = np.arange(len(first))
  decision_of_group = np.empty(problem.num_groups, np.int32)
  decision_of_group[order] = rank[inverse.reshape(-1)]
  return decision_of_group[problem.group_of]
