"""Data parallelism, pipelines and hybrids of microbatched steps.

Devices are a grid of replicas by stages (GPipe, Huang et al., 2019). Stages are
balanced by dynamic programming over layers (PipeDream, Harlap et al., arXiv
1806.03377), variables by bytes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.op_names import UNKNOWN
from tfplace.core.paths import transfers, upward_ranks
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.list_scheduling.placers import held_bytes
from tfplace.placers.repair import offer_repaired
from tfplace.placers.rules.axes import longest_ops, read_scopes, spread
from tfplace.placers.rules.stages import balanced_stages, merged_layers
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer


@dataclasses.dataclass(frozen=True)
class GridConfig:
  """Settings of grids; all defaults were chosen by trial."""

  # Maximum number of layers for the dynamic program, which is cubic.
  most_layers: int = 512
  # Share of work that must have known layers; otherwise op names are used.
  least_known: float = 0.5


_CONFIG = GridConfig()


@dataclasses.dataclass(frozen=True)
class DataParallelPlacer:
  """Places each microbatch on its own device, as far as devices suffice."""

  name: ClassVar[str] = "data_parallel"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Uses one stage and as many replicas as possible.

    Raises TfplaceError if the step is not microbatched.
    """
    step = DeviceGrid(_split(self.name, problem))
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, step, [(step.most_replicas, 1)])


@dataclasses.dataclass(frozen=True)
class PipelinePlacer:
  """Places each stage of consecutive layers on its own device."""

  name: ClassVar[str] = "pipeline"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Uses one replica and as many stages as there are devices."""
    step = DeviceGrid(GroupGraph(problem))
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, step, [(1, len(step.devices))])


@dataclasses.dataclass(frozen=True)
class HybridPlacer:
  """Places replicas of a pipeline in the best grid."""

  name: ClassVar[str] = "hybrid"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries grids of at least two replicas and two stages.

    Raises TfplaceError without microbatches or with fewer than four devices.
    """
    step = DeviceGrid(_split(self.name, problem))
    grids = list(step.grids())
    if not grids:
      raise TfplaceError(
        f"strategy {self.name!r} needs four devices of one kind, for two"
        f" replicas of two stages; cluster {problem.cluster.name!r} has"
        f" {len(step.devices)}"
      )
    tracker = Tracker(self.name, problem, evaluator, budget)
    return _best(tracker, step, grids)


def _split(strategy: str, problem: Problem) -> GroupGraph:
  if problem.graph.num_microbatches < 2:
    raise TfplaceError(
      f"strategy {strategy!r} places a step that is split into microbatches,"
      f" which that of graph {problem.graph.name!r} is not"
    )
  return GroupGraph(problem)


def _best(
  tracker: Tracker, step: "DeviceGrid", grids: list[tuple[int, int]]
) -> Result:
  first, least = None, np.inf
  for row in step.placements(grids):
    found_us = tracker.offer(step.groups.expand(row)).step_time_us
    if first is None or found_us < least:
      first, least = row, found_us
    if tracker.budget.left_s <= 0:
      break
  if tracker.best is None and first is not None:
    offer_repaired(tracker, step.groups, first)
  return tracker.result()


class DeviceGrid:
  """The groups of a step, arranged for grids of replicas and stages.

  Attributes:
    groups: groups of the problem.
    devices: [num_main] devices of the kind that runs the work fastest.
    microbatch: [num_groups] microbatch of each group, UNKNOWN if shared.
  """

  def __init__(self, groups: GroupGraph) -> None:
    self.groups = groups
    self.devices = main_devices(groups)
    self.microbatch = _of_groups(groups)
    self.count = groups.problem.graph.num_microbatches

  @property
  def most_replicas(self) -> int:
    """Maximum number of replicas, limited by devices and microbatches."""
    return min(self.count, len(self.devices))

  def grids(self) -> Iterator[tuple[int, int]]:
    """Yields (replicas, stages) of two or more each.

    Grids whose devices would suffice for another replica are skipped.
    """
    for replicas in range(2, self.most_replicas + 1):
      stages = len(self.devices) // replicas
      is_largest = stages > len(self.devices) // (replicas + 1)
      if stages > 1 and is_largest:
        yield replicas, stages

  def placements(self, grids: list[tuple[int, int]]) -> Iterator[np.ndarray]:
    """Yields [num_groups] devices of every variant of the grids.

    The variants are stages by time or memory, layouts on devices, and gradients
    added at the variable or on the way.
    """
    for replicas, stages in grids:
      places = np.arange(replicas * stages)
      layouts = [places.reshape(replicas, stages)]
      if min(replicas, stages) > 1:
        layouts.append(places.reshape(stages, replicas).T)
      on_way = (False, True) if replicas > 1 else (False,)
      for stage, layout, along in itertools.product(
        self._stagings(replicas, stages), layouts, on_way
      ):
        yield self._placed(self.devices[layout], stage, along)

  def _placed(
    self, grid: np.ndarray, stage: np.ndarray, along: bool
  ) -> np.ndarray:
    """Returns [num_groups] devices of one [replicas, stages] grid.

    `along` adds gradients from replica to replica instead of at the variable.
    """
    replica = self._replicas(stage, len(grid), grid.shape[1], along)
    wanted = grid[np.maximum(replica, 0), np.maximum(stage, 0)]
    batch, rows = self._slices
    wanted[rows] = wanted[batch]
    return self.groups.nearest(wanted)

  def replicas(self, count: int) -> np.ndarray:
    """Returns [num_groups] replica of each group with a single stage."""
    nothing = np.zeros(self.groups.num_groups, np.int64)
    return np.maximum(self._replicas(nothing, count, 1, along=False), 0)

  def _replicas(
    self, stage: np.ndarray, count: int, stages: int, along: bool
  ) -> np.ndarray:
    """Returns [num_groups] replica of each group, UNKNOWN if undetermined."""
    replica = np.where(
      self.microbatch == UNKNOWN,
      UNKNOWN,
      self.microbatch * count // self.count,
    )
    for one in range(stages):
      self._spread_variables(replica, stage == one, count)
    if along:
      self._add_along(replica)
    return self._follow(replica)

  @functools.cached_property
  def _slices(self) -> tuple[np.ndarray, np.ndarray]:
    """Groups of the fed batch, and groups that take a microbatch's rows of it.

    The rows are taken where the batch is: only they are sent.
    """
    src, dst, size = self.groups.edges
    is_fed = self.groups.persistent_bytes == 0
    is_fed[dst] = False
    is_fed &= self.microbatch == UNKNOWN
    graph = self.groups.problem.graph
    output = np.bincount(self.groups.problem.group_of, graph.op_output_bytes)
    takes = is_fed[src] & (self.microbatch[dst] != UNKNOWN)
    takes &= size > output[dst]
    return src[takes], dst[takes]

  def _spread_variables(
    self, replica: np.ndarray, here: np.ndarray, count: int
  ) -> None:
    """Assigns variables in place, the largest first, to balance their bytes."""
    size = self.groups.persistent_bytes
    mine = np.flatnonzero(here & (replica == UNKNOWN) & (size > 0))
    held = np.zeros(count)
    for group in mine[np.argsort(-size[mine], kind="stable")].tolist():
      replica[group] = held.argmin()
      held[replica[group]] += size[group]

  def _add_along(self, replica: np.ndarray) -> None:
    """Assigns ops that add gradients to the last microbatch's replica."""
    src, dst, _ = self.groups.edges
    adds = (self.microbatch[src] != UNKNOWN) & (replica[dst] == UNKNOWN)
    np.maximum.at(replica, dst[adds], replica[src[adds]])

  def _follow(self, known: np.ndarray) -> np.ndarray:
    """Fills in unknown [num_groups] values.

    An unknown group follows the shared reader of most of its bytes, or else its
    neighbors.
    """
    src, dst, size = self.groups.edges
    shared = self.microbatch == UNKNOWN
    rows = np.flatnonzero(shared[src] & shared[dst])
    rows = rows[np.lexsort((dst[rows], -size[rows], src[rows]))]
    reader = np.arange(self.groups.num_groups)
    readers, first = np.unique(src[rows], return_index=True)
    reader[readers] = dst[rows[first]]
    reader = np.where(known == UNKNOWN, reader, np.arange(len(reader)))
    for _ in range(int(self.groups.num_groups).bit_length()):
      reader = reader[reader]
    found = np.where(known == UNKNOWN, known[reader], known)
    return spread(self.groups, found)

  def _stagings(self, replicas: int, stages: int) -> list[np.ndarray]:
    """Returns [num_groups] stages balanced by time.

    If these exceed the memory of the devices, stages balanced within memory are
    returned as well.
    """
    layer, groups = self._layer_of_groups, self.groups
    work_us = np.bincount(layer, groups.fastest_us)
    held = np.bincount(layer, held_bytes(groups)) / replicas
    memory = groups.problem.cluster.memory_bytes[self.devices].min()
    of_layer = balanced_stages(work_us, self._cut_us, stages)
    found = [of_layer[layer]]
    if np.bincount(of_layer, held).max(initial=0.0) > memory:
      within = (held, float(memory))
      found.append(
        balanced_stages(work_us, self._cut_us, stages, within)[layer]
      )
    return found

  @functools.cached_property
  def _layer_of_groups(self) -> np.ndarray:
    """[num_groups] layer of each group, numbered in forward order."""
    groups = self.groups
    layer = self._follow(self._layers())
    layer = np.unique(layer, return_inverse=True)[1].reshape(-1)
    # Sort layers by the time from their first op to the end of the step. By
    # earliest start, a layer's reshaped weight would count as its input.
    after_us = upward_ranks(groups.problem.graph, groups.problem.fastest_us)
    of_group = np.zeros(groups.num_groups)
    np.maximum.at(of_group, groups.problem.group_of, after_us)
    of_group[self.microbatch != (0 if self.count > 1 else UNKNOWN)] = 0.0
    most = np.zeros(layer.max(initial=0) + 1)
    np.maximum.at(most, layer, of_group)
    rank = np.argsort(np.argsort(-most, kind="stable"), kind="stable")
    return merged_layers(rank[layer], groups.fastest_us, _CONFIG.most_layers)

  def _layers(self) -> np.ndarray:
    """Returns [num_groups] layer of each group's longest op, or UNKNOWN."""
    graph = self.groups.problem.graph
    layer = graph.layer[longest_ops(self.groups)].astype(np.int64)
    work = self.groups.fastest_us
    in_passes = (self.microbatch != UNKNOWN) | (self.count == 1)
    total = work[in_passes].sum()
    if (
      work[in_passes & (layer != UNKNOWN)].sum() >= _CONFIG.least_known * total
    ):
      return layer
    names = [
      name.removeprefix(f"microbatch_{number}/")
      for name, number in zip(
        graph.names, graph.microbatch.tolist(), strict=True
      )
    ]
    # Shared ops have names from other places, such as the optimizer.
    return np.where(in_passes, read_scopes(self.groups, names).of, UNKNOWN)

  @functools.cached_property
  def _cut_us(self) -> np.ndarray:
    """[num_layers - 1] microseconds of the transfers across each border."""
    problem, layer = self.groups.problem, self._layer_of_groups
    graph, cluster = problem.graph, problem.cluster
    of_op = layer[problem.group_of]
    across, _ = transfers(graph, of_op)
    us_per_byte, fixed_us = mean_transfer(cluster, with_gap=True)
    us = graph.edge_bytes[across] * us_per_byte + fixed_us
    ends = of_op[graph.edge_src[across]], of_op[graph.edge_dst[across]]
    change = np.zeros(layer.max(initial=0) + 1)
    np.add.at(change, np.minimum(*ends), us)
    np.subtract.at(change, np.maximum(*ends), us)
    return np.cumsum(change)[:-1]


def _of_groups(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups] microbatch of each group; UNKNOWN if ops differ."""
  problem = groups.problem
  least = np.full(groups.num_groups, np.iinfo(np.int64).max)
  most = np.full(groups.num_groups, UNKNOWN)
  of_op = problem.graph.microbatch.astype(np.int64)
  np.minimum.at(least, problem.group_of, of_op)
  np.maximum.at(most, problem.group_of, of_op)
  return np.where(least == most, most, UNKNOWN)
