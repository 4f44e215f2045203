"""Placements to calibrate and profile with; good ones are not sought."""

from collections.abc import Sequence

import numpy as np

from tfplace.core.problem import Problem


def home(problem: Problem) -> np.ndarray:
  """[num_groups]: the first device that each group may be on."""
  return problem.group_allowed.argmax(axis=1)


def peers(problem: Problem) -> list[int]:
  """The devices that the work is shared among: those of one kind.

  The kind is the one that most groups are at home on; where it has a single
  device, all devices. (Scattered over a GPU and the host's CPU, a step tells
  of the CPU alone.)
  """
  kinds = np.array([d.kind for d in problem.cluster.devices])
  common = np.bincount(home(problem), minlength=len(kinds)).argmax()
  alike = np.flatnonzero(kinds == kinds[common])
  return alike.tolist() if len(alike) > 1 else list(range(len(kinds)))


def scattered(
  problem: Problem,
  start: np.ndarray,
  devices: Sequence[int],
  shares: Sequence[float],
  seed: int,
) -> np.ndarray:
  """[len(shares), num_ops]: a share of the groups on random devices.

  The others stay where they are. A larger share moves the same groups, and
  more.

  Args:
    problem: what is scattered.
    start: [num_ops] a placement.
    devices: where groups go; one that may be on none of them goes home.
    shares: of the groups.
    seed: of what goes where.
  """
  rng = np.random.default_rng(seed)
  stay = np.empty(problem.num_groups, np.int64)
  stay[problem.group_of] = start
  allowed = np.zeros_like(problem.group_allowed)
  allowed[:, devices] = problem.group_allowed[:, devices]
  # A random device among the allowed ones: the largest of random keys.
  keys = np.where(allowed, rng.random(allowed.shape), -1.0)
  away = np.where(allowed.any(axis=1), keys.argmax(axis=1), home(problem))
  moved = rng.random(problem.num_groups)
  rows = [np.where(moved < share, away, stay) for share in shares]
  return np.stack(rows)[:, problem.group_of].astype(np.int32)


def turns(problem: Problem, devices: Sequence[int], runs: int) -> np.ndarray:
  """[num_ops]: runs of groups, in the order of the graph, on devices in turn.

  Few tensors cross. A group that may not be where its turn is stays at home.

  Args:
    problem: what is split.
    devices: indices of the devices that take turns.
    runs: how many runs of as many groups each.
  """
  position = problem.graph.topological_position
  first = np.full(problem.num_groups, len(position))
  np.minimum.at(first, problem.group_of, position)
  rank = np.empty(problem.num_groups, np.int64)
  rank[np.argsort(first, kind="stable")] = np.arange(problem.num_groups)
  turn = np.array(devices)[rank * runs // problem.num_groups % len(devices)]
  may = problem.group_allowed[np.arange(len(turn)), turn]
  row = np.where(may, turn, home(problem))
  return row[problem.group_of].astype(np.int32)


def balanced(
  problem: Problem, devices: Sequence[int], message_us: float
) -> np.ndarray:
  """[num_ops]: ops in the order of the graph, each where it can start first.

  List scheduling, as if every tensor that crosses took `message_us`: all
  devices are at work, and the less a message takes the more of them there are.
  A group is where its first op is.

  Args:
    problem: what is split.
    devices: indices of the devices that share the work.
    message_us: microseconds, at 0 tensors cross wherever that is no worse.
  """
  graph, group_of = problem.graph, problem.group_of
  offsets, edges = graph.in_csr
  at_home, allowed = home(problem), problem.group_allowed
  where = np.full(problem.num_groups, -1)
  ends = np.zeros(graph.num_ops)
  free = np.zeros(problem.cluster.num_devices)
  for op in graph.topological_order.tolist():
    group = group_of[op]
    before = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    around = where[group_of[before]]
    starts = {}
    for device in (
      [where[group]] if where[group] >= 0 else [*devices, at_home[group]]
    ):
      if allowed[group, device]:
        there = ends[before] + message_us * (around != device)
        starts[device] = max(free[device], there.max(initial=0.0))
    device = min(starts, key=starts.__getitem__)
    where[group] = device
    ends[op] = free[device] = starts[device] + problem.time_us[op, device]
  return where[group_of].astype(np.int32)
