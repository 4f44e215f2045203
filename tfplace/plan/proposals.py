"""Step variants to try, by the devices and by the memory of a step."""

import numpy as np

from tfplace.errors import PlacementError
from tfplace.graph.microbatches import plain_sizes
from tfplace.graph.problem import Problem
from tfplace.graph.recompute import segment_of
from tfplace.placers.groups import GroupGraph, main_devices, working_devices
from tfplace.plan.variants import VariantTrial
from tfplace.simulate import Simulator

MOST = 16  # Largest number of microbatches; our choice.
_MOST_PER_DEVICE = 4  # The same per device that works.
_SHORT = 0.85  # Share of the memory of a main device from which it is short.
_MOVED = 0.1  # Share of all work that CPUs beside main devices do, likewise.
_PER_DEVICE = (1, 2)  # Numbers of microbatches of each device.


def proposed_sizes(problem: Problem) -> list[tuple[int, ...]]:
  """Proposes sizes by the speed of the devices, and within their memory.

  Each device gets one microbatch, or two. Devices that are too slow for one
  example get none, and equal devices no proposal. Sizes descend.
  """
  examples = problem.graph.extra.get("batch_size", 0)
  groups = GroupGraph.of(problem)
  devices = working_devices(groups)
  if len(devices) < 2 or not isinstance(examples, int) or examples < 2:
    return []
  speed = 1.0 / np.maximum(groups.possible_us.sum(axis=0)[devices], 1e-300)
  most = _most_examples(groups, devices, examples)
  proposals = []
  for number in _PER_DEVICE:
    for limits in (np.full(len(devices), np.inf), most):
      shares = np.repeat(_within(examples, speed, limits) / number, number)
      sizes = _rounded(examples, shares)
      is_plain = sizes == plain_sizes(examples, len(sizes))
      if len(sizes) > 1 and not is_plain and sizes not in proposals:
        proposals.append(sizes)
  return proposals


def _most_examples(
  groups: GroupGraph, devices: np.ndarray, examples: int
) -> np.ndarray:
  """Returns [num_devices] examples that the memory of each device holds.

  What one device holds beside its variables is taken to grow with the batch.
  """
  problem = groups.problem
  first = int(devices[0])
  row = groups.expand(groups.nearest(np.full(groups.num_groups, first)))
  try:
    (evaluation,) = Simulator(problem).evaluate(row[np.newaxis])
  except PlacementError:  # Alone, the device lacks a link.
    return np.full(len(devices), np.inf)
  held = float(problem.graph.persistent_bytes.sum())
  peak = evaluation.peak_memory_bytes[problem.cluster.devices[first].name]
  of_example = max(peak - held, 0.0) / examples
  room = problem.cluster.memory_bytes[devices] - held / len(devices)
  return np.maximum(room, 0.0) / max(of_example, 1e-300)


def _within(examples: int, speed: np.ndarray, limits: np.ndarray) -> np.ndarray:
  """Divides examples by speed; what exceeds a limit goes to other devices."""
  shares = np.zeros(len(speed))
  is_open = np.ones(len(speed), bool)
  while is_open.any():
    left = max(examples - float(shares[~is_open].sum()), 0.0)
    shares[is_open] = left * speed[is_open] / speed[is_open].sum()
    is_full = is_open & (shares > limits)
    if not is_full.any():
      return shares
    shares[is_full] = limits[is_full]
    is_open &= ~is_full
  # Not even all memories suffice: the excess is shared by all.
  total = float(shares.sum())
  return shares * examples / total if total > 0 else examples * speed


def _rounded(examples: int, shares: np.ndarray) -> tuple[int, ...]:
  """Rounds shares to integers of the same sum, without zeros."""
  shares = shares * examples / float(shares.sum())
  sizes = np.floor(shares + 1e-9).astype(int)
  missing = examples - int(sizes.sum())
  # Alike devices stay alike where that is possible: equal remainders in turn.
  most = np.argsort(-np.round(shares - sizes, 6), kind="stable")
  sizes[most[:missing]] += 1
  return tuple(sorted((int(size) for size in sizes if size), reverse=True))


def is_short_of_memory(trial: VariantTrial) -> bool:
  """Returns whether a main device is nearly full, or others do its work."""
  if trial.best is None:
    return trial.exceeds_memory
  problem = trial.opened.problem
  peaks = trial.best.evaluation.peak_memory_bytes
  main = main_devices(GroupGraph.of(problem))
  devices = [problem.cluster.devices[i] for i in main]
  shares = [peaks.get(d.name, 0.0) / max(d.memory_bytes, 1.0) for d in devices]
  work_us, used = problem.fastest_us, trial.best.placement.devices
  cpus = np.flatnonzero(problem.cluster.is_cpu)
  on_cpus = np.isin(used, np.setdiff1d(cpus, main))
  moved = work_us[on_cpus].sum() > _MOVED * work_us.sum()
  unused = not np.isin(used, main).any()
  return unused or moved or max(shares) > _SHORT


def segments_by_worth(problem: Problem) -> list[int]:
  """Returns recomputed segments by bytes freed per microsecond, best first."""
  graph = problem.graph
  freed: dict[int, float] = {}
  spent_us: dict[int, float] = {}
  for op, name in enumerate(graph.names):
    segment = segment_of(name)
    if segment is not None:
      freed[segment] = freed.get(segment, 0.0) + graph.op_output_bytes[op]
      spent_us[segment] = spent_us.get(segment, 0.0) + problem.fastest_us[op]
  worth = {i: freed[i] / max(spent_us[i], 1e-3) for i in freed}
  return sorted(worth, key=lambda segment: -worth[segment])


def variables_exceed_memory(problem: Problem) -> bool:
  """Returns True if the devices together cannot hold the variables."""
  held = problem.graph.persistent_bytes.sum()
  return bool(held > problem.cluster.memory_bytes.sum())


def num_working_devices(problem: Problem) -> int:
  """Returns the number of devices that a step can be divided among."""
  return len(working_devices(GroupGraph.of(problem)))


def counts_to_try(devices: int) -> list[int]:
  """Returns the numbers of microbatches to try: powers of two and devices.

  On one device, microbatches only save memory, so all numbers are tried.
  """
  most = MOST
  if devices > 1:
    most = min(most, _MOST_PER_DEVICE * devices)
  powers = [1 << i for i in range(most.bit_length())]
  wanted = {*powers, devices, 2 * devices}
  return sorted(count for count in wanted if count <= most)
