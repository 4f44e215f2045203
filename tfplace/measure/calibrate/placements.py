"""Placements for calibration and profiling, not optimized for speed."""

from collections.abc import Sequence

import numpy as np

from tfplace.graph.problem import Problem


def home_devices(problem: Problem) -> np.ndarray:
  """Returns [num_groups] the first device that each group may use."""
  return problem.group_allowed.argmax(axis=1)


def peers(problem: Problem) -> list[int]:
  """Lists the devices that share the work: all devices of one kind.

  The kind is the one that is home to most groups. If it has a single device,
  all devices are returned. (A step scattered over a GPU and the host's CPU
  would only show the CPU's speed.)
  """
  kinds = np.array([d.kind for d in problem.cluster.devices])
  common = np.bincount(home_devices(problem), minlength=len(kinds)).argmax()
  alike = np.flatnonzero(kinds == kinds[common])
  return alike.tolist() if len(alike) > 1 else list(range(len(kinds)))


def scattered(
  problem: Problem,
  start: np.ndarray,
  devices: Sequence[int],
  shares: Sequence[float],
  *,
  seed: int,
) -> np.ndarray:
  """Moves shares of the groups to random devices: [len(shares), num_ops].

  A larger share moves the same groups and additional ones. A group of the
  placement `start` [num_ops] that may use none of `devices` goes home.
  """
  rng = np.random.default_rng(seed)
  stay = np.empty(problem.num_groups, np.int64)
  stay[problem.group_of] = start
  allowed = np.zeros_like(problem.group_allowed)
  allowed[:, devices] = problem.group_allowed[:, devices]
  # The largest random key selects a random allowed device.
  keys = np.where(allowed, rng.random(allowed.shape), -1.0)
  away = np.where(
    allowed.any(axis=1), keys.argmax(axis=1), home_devices(problem)
  )
  moved = rng.random(problem.num_groups)
  rows = [np.where(moved < share, away, stay) for share in shares]
  return np.stack(rows)[:, problem.group_of].astype(np.int32)


def round_robin(
  problem: Problem, devices: Sequence[int], runs: int
) -> np.ndarray:
  """Places runs of consecutive groups on devices in turn: [num_ops].

  The `runs` runs have equally many groups, and few tensors are transferred. A
  group that may not use its device goes home.
  """
  position = problem.graph.topological_position
  first = np.full(problem.num_groups, len(position))
  np.minimum.at(first, problem.group_of, position)
  rank = np.empty(problem.num_groups, np.int64)
  rank[np.argsort(first, kind="stable")] = np.arange(problem.num_groups)
  turn = np.array(devices)[rank * runs // problem.num_groups % len(devices)]
  may = problem.group_allowed[np.arange(len(turn)), turn]
  row = np.where(may, turn, home_devices(problem))
  return row[problem.group_of].astype(np.int32)


def with_variables_on(
  problem: Problem, start: np.ndarray, device: int
) -> np.ndarray:
  """Moves groups with variables of a placement [num_ops] to a device."""
  holds = np.zeros(problem.num_groups, bool)
  holds[problem.group_of[problem.graph.persistent_bytes > 0]] = True
  moves = holds & problem.group_allowed[:, device]
  return np.where(moves[problem.group_of], device, start).astype(np.int32)
