"""Devices that hardly work: dropped from a placement, and the reasons."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfplace.graph.evaluation import Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers.groups import GroupGraph, working_devices

MOST_SHARE = 0.01  # Share of the work below which a device may be dropped.
MOST_LOSS = 0.01  # Share of the step time that all losses may cost.
_ROUNDS = 4  # Groups follow neighbors that moved, too; chosen by trial.
_TARGETS = 3  # Devices of either sort that get all groups; our choice.


def without_idle_devices(result: Result, evaluator: Evaluator) -> Result:
  """Drops devices with next to no work whose loss costs next to nothing.

  The least busy device comes first. Beside other devices, a CPU may be dropped
  whatever its work is; ops without another kernel stay on it.
  """
  problem = result.placement.problem
  groups = GroupGraph.of(problem)
  current = groups.contract(result.placement.devices)
  evaluation, evaluations = result.evaluation, result.evaluations
  tried: set[int] = set()
  limit_us = (1 + MOST_LOSS) * result.evaluation.step_time_us  # for all of them
  while idle := [d for d in _droppable(groups, current) if d not in tried]:
    rows = [
      Placement(problem, groups.expand(row))
      for row in _rows_without(groups, current, idle[0])
    ]
    tried.add(idle[0])
    judged = evaluator.evaluate(rows) if rows else []
    evaluations += len(rows)
    fits = [
      (e.step_time_us, i)
      for i, e in enumerate(judged)
      if e.feasible and e.step_time_us <= limit_us
    ]
    if fits:
      _, best = min(fits)
      current, evaluation = groups.contract(rows[best].devices), judged[best]
  if evaluation is result.evaluation:
    return result
  return dataclasses.replace(
    result,
    placement=Placement(problem, groups.expand(current)),
    evaluation=evaluation,
    evaluations=evaluations,
  )


def _droppable(groups: GroupGraph, current: np.ndarray) -> list[int]:
  """Returns the devices that may be dropped, the least busy first."""
  devices = groups.problem.cluster.devices
  is_cpu = np.array([device.is_cpu for device in devices])
  busy_us = _busy_us(groups.problem, groups.expand(current))
  is_idle = busy_us < MOST_SHARE * busy_us.sum()
  is_idle |= is_cpu & ~is_cpu.all()
  used = np.unique(current)
  idle = used[is_idle[used]]
  return idle[np.argsort(busy_us[idle], kind="stable")].tolist()


def _rows_without(
  groups: GroupGraph, current: np.ndarray, device: int
) -> Iterator[np.ndarray]:
  """Yields [num_groups] devices after moves off a device, if any is possible.

  Groups move to the devices of most of their neighbors' bytes, and then all to
  one device: those where most of them moved, and the least busy ones.
  """
  others = np.setdiff1d(np.unique(current), [device])
  is_cpu = np.array([d.is_cpu for d in groups.problem.cluster.devices])
  if not is_cpu.all():
    others = others[~is_cpu[others]]  # CPUs take no work beside GPUs.
  movable = np.flatnonzero(current == device)
  allowed = groups.allowed[np.ix_(movable, others)]
  movable, allowed = movable[allowed.any(axis=1)], allowed[allowed.any(axis=1)]
  if not len(movable):
    return
  row = current.copy()
  src, dst, size = groups.edges
  weight = size + 1.0  # Messages without bytes count, too.
  for _ in range(_ROUNDS):
    near = np.zeros((groups.num_groups, groups.num_devices))
    np.add.at(near, (src, row[dst]), weight)
    np.add.at(near, (dst, row[src]), weight)
    votes = np.where(allowed, near[np.ix_(movable, others)], -1.0)
    row = row.copy()
    row[movable] = others[votes.argmax(axis=1)]
  yield row
  most = np.bincount(row[movable], minlength=groups.num_devices)[others]
  own_us = groups.time_us[np.arange(groups.num_groups), current]
  busy_us = np.bincount(current, own_us, groups.num_devices)[others]
  close, free = (
    np.argsort(x, kind="stable")[:_TARGETS] for x in (-most, busy_us)
  )
  for i in dict.fromkeys((*close.tolist(), *free.tolist())):
    there = allowed[:, i]
    moved = row.copy()
    moved[movable[there]] = others[i]
    yield moved


def idle_reason(placement: Placement) -> str:
  """Says why devices do no work, as part of a sentence; "" if all work.

  Beside other devices, CPUs need no reason.
  """
  problem = placement.problem
  groups, cluster = GroupGraph.of(problem), problem.cluster
  idle = np.setdiff1d(working_devices(groups), at_work(placement))
  busy = np.setdiff1d(working_devices(groups), idle)
  if not len(idle) or not len(busy):
    return ""
  work_us = groups.possible_us.sum(axis=0)
  slower = work_us[idle].min() / max(work_us[busy].max(), 1e-300)
  parts = []
  if slower > 1.05:
    parts.append(f"they compute {slower:.2g} times as slowly")
  host = [device.name.rpartition("/device:")[0] for device in cluster.devices]
  if not {host[i] for i in idle} & {host[i] for i in busy}:
    parts.append("they are on other hosts")
  width = _width(problem)
  if width < len(busy) + len(idle):
    parts.append(
      "ops that wait for one another leave work for"
      f" {width:.2g} device{'s' * (width >= 1.05)} at once"
    )
  one = len(idle) == 1
  kind = "GPU" if not cluster.devices[idle[0]].is_cpu else "CPU"
  why = f": {' and '.join(parts)}" if parts else ""
  return (
    f"{len(idle)} {kind}{'s' * (not one)} {'does' if one else 'do'} no work,"
    f" since nothing faster was found with {'it' if one else 'them'}{why}"
  )


def at_work(placement: Placement) -> np.ndarray:
  """Returns the devices that run an op which takes time, in order."""
  busy_us = _busy_us(placement.problem, placement.devices)
  return np.flatnonzero(busy_us > 0)


def _busy_us(problem: Problem, devices: np.ndarray) -> np.ndarray:
  """Returns [num_devices] time of the ops of each device."""
  took_us = problem.time_us[np.arange(len(devices)), devices]
  return np.bincount(devices, took_us, problem.cluster.num_devices)


def _width(problem: Problem) -> float:
  """Returns the work of all ops over their longest path, without transfers."""
  longest_us = max(problem.longest_path_us, 1e-300)
  return float(problem.fastest_us.sum()) / longest_us
