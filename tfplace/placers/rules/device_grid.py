"""Grids of replicas by stages, on which microbatched steps are placed.

A grid holds replicas of a pipeline (GPipe, Huang et al., 2019). Stages are
balanced by dynamic programming over layers (PipeDream, Harlap et al., arXiv
1806.03377), variables by bytes. Where devices differ, replicas get microbatches
and stages get layers by the speed and memory of their devices.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.paths import transfers
from tfplace.placers.groups import GroupGraph, main_devices, working_devices
from tfplace.placers.list_scheduling.placers import held_bytes
from tfplace.placers.one_shot import Batches
from tfplace.placers.rules.axes import longest_ops, read_scopes, spread
from tfplace.placers.rules.exchanges import (
  Exchanges,
  find_exchanges,
  readers,
  served_variables,
)
from tfplace.placers.rules.stages import (
  balanced_shares,
  balanced_stages,
  merged_layers,
)
from tfplace.simulate.links import mean_transfer

# Maximum number of layers for the dynamic program, which is cubic.
_MOST_LAYERS = 512
# Share of work that must have known layers; otherwise op names are used.
_LEAST_KNOWN = 0.5


class DeviceGrid:
  """The groups of a step, arranged for grids of replicas and stages.

  Attributes:
    groups: groups of the problem.
    devices: [num_used] devices of the grids; if they differ, the fastest first.
    is_unequal: whether they differ in kind or memory.
    microbatch: [num_groups] microbatch of each group, UNKNOWN if shared.
  """

  def __init__(
    self, groups: GroupGraph, unequal: np.ndarray | None = None
  ) -> None:
    """Uses the devices of the main kind, or `unequal` devices."""
    self.groups = groups
    self.is_unequal = unequal is not None
    self.devices = main_devices(groups) if unequal is None else unequal
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

  def placements(self, replicas: int, stages: int) -> Iterator[np.ndarray]:
    """Yields [num_groups] devices of every variant of a grid.

    The variants are stages by time or memory, layouts on devices, and slots of
    the optimizer by themselves or beside their variables. Unequal devices have
    more: shares of the microbatches by time or memory, and variables spread
    evenly, by speed or on the fastest devices.
    """
    if self.is_unequal:
      yield from self._unequal(replicas, stages)
      return
    share = np.arange(self.count) * replicas // self.count
    used = self.devices[: replicas * stages]
    layouts = _layouts(used, replicas, stages)
    stagings = self._stagings(layouts[0])
    for stage, layout in itertools.product(stagings, layouts):
      yield from self._placed(layout, stage, share, np.ones(replicas))

  def _unequal(self, replicas: int, stages: int) -> Iterator[np.ndarray]:
    """Yields [num_groups] devices of every variant on unequal devices."""
    used = self.devices[: replicas * stages]
    orders = {tuple(used), tuple(used[::-1]), tuple(np.sort(used))}
    for order in sorted(orders):
      for layout in _layouts(np.array(order), replicas, stages):
        for stage in self._stagings(layout):
          for share, weights in self._shares(layout, stage):
            yield from self._placed(layout, stage, share, weights)

  def _shares(
    self, layout: np.ndarray, stage: np.ndarray
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns [num_microbatches] replicas and [replicas] weights of variables.

    A replica takes as long as its slowest stage.
    """
    replicas, stages = layout.shape
    if replicas == 1:
      return [(np.zeros(self.count, np.int64), np.ones(1))]
    in_microbatch = self.microbatch != UNKNOWN
    at = self.microbatch[in_microbatch], stage[in_microbatch]
    time_us = np.zeros((replicas, self.count, stages))
    held = np.zeros((self.count, stages))
    np.add.at(held, at, held_bytes(self.groups)[in_microbatch])
    for replica, devices in enumerate(layout):
      us = self.groups.possible_us[in_microbatch, devices[at[1]]]
      np.add.at(time_us[replica], at, us)
    memory = self.groups.problem.cluster.memory_bytes[layout]
    shares = balanced_shares(time_us.max(axis=2).T, held, memory)
    speed = 1.0 / np.maximum(time_us.max(axis=2).sum(axis=1), 1e-300)
    weights = [np.ones(replicas), speed, 1.0 * (speed >= 0.999 * speed.max())]
    return [
      (share, used)
      for share in shares
      for weight in (weights if stages == 1 else weights[:1])
      if (used := weight * (np.bincount(share, minlength=replicas) > 0)).any()
    ]

  def _placed(
    self,
    grid: np.ndarray,
    stage: np.ndarray,
    share: np.ndarray,
    weights: np.ndarray,
  ) -> Iterator[np.ndarray]:
    """Yields [num_groups] devices of one [replicas, stages] grid.

    `share` and `weights` are as `_shares` returns them.
    """
    known = np.where(
      self.microbatch == UNKNOWN, UNKNOWN, share[self.microbatch]
    )
    alone = np.arange(self.groups.num_groups)
    ways = [alone]  # Variables and slots one by one, or slots beside theirs.
    if len(grid) > 1 and (self._served != alone).any():
      ways.append(self._served)
    for beside in ways:
      replica = known.copy()
      for one in range(grid.shape[1]):
        self._spread_variables(replica, stage == one, weights, beside)
      replica = self._follow(replica)
      self._assign_exchanges(replica, stage, grid, share)
      wanted = grid[np.maximum(replica, 0), np.maximum(stage, 0)]
      batch, rows = self._slices
      wanted[rows] = wanted[batch]
      yield self.groups.nearest(wanted)

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
    self,
    replica: np.ndarray,
    here: np.ndarray,
    weights: np.ndarray,
    beside: np.ndarray,
  ) -> None:
    """Assigns variables in place, the largest first, by [replicas] weights.

    A variable is counted and placed with the one that it is `beside`.
    """
    groups = self.groups
    size = np.bincount(beside, groups.persistent_bytes, groups.num_groups)
    variables = np.flatnonzero(here & (replica == UNKNOWN) & (size > 0))
    held = np.where(weights > 0, 0.0, np.inf)
    order = np.argsort(-size[variables], kind="stable")
    for group in variables[order].tolist():
      replica[group] = held.argmin()
      held[replica[group]] += size[group] / weights[replica[group]]
    replica[here] = replica[beside[here]]

  @functools.cached_property
  def _exchanges(self) -> Exchanges:
    return find_exchanges(self.groups, self.microbatch)

  @functools.cached_property
  def _served(self) -> np.ndarray:
    return served_variables(self.groups, self.microbatch)

  def _assign_exchanges(
    self,
    replica: np.ndarray,
    stage: np.ndarray,
    grid: np.ndarray,
    share: np.ndarray,
  ) -> None:
    """Assigns sums over microbatches and relays of variables in place.

    What serves one replica is there. A sum from left to right moves on to the
    next replica with several microbatches. What serves one host, away from the
    variable, is on its device with the fewest such bytes. All else is beside
    the variable.
    """
    exchanges, size = self._exchanges, self.groups.total_bytes
    rows = np.flatnonzero(exchanges.first != UNKNOWN)
    hosts = self.groups.problem.cluster.hosts[grid]
    held = np.zeros(grid.shape)
    chosen: dict[tuple[int, int], int] = {}
    alike = share[1:] == share[:-1]
    is_run = np.append(alike, False) | np.append(False, alike)
    moves_on = exchanges.adds_last & is_run[exchanges.last]
    for group in rows[np.argsort(-size[rows], kind="stable")].tolist():
      variable, at = int(exchanges.variable[group]), stage[group]
      first, last = share[
        [exchanges.first[group], exchanges.last[group]]
      ].tolist()
      if first == last or moves_on[group]:
        replica[group] = last
        continue
      replica[group] = replica[variable]
      host, other, home = hosts[[first, last, replica[group]], at].tolist()
      if host != other or host == home:
        continue
      if (variable, host) not in chosen:
        free = np.where(hosts[:, at] == host, held[:, at], np.inf)
        chosen[variable, host] = int(free.argmin())
        held[chosen[variable, host], at] += size[group]
      replica[group] = chosen[variable, host]

  def _follow(self, known: np.ndarray) -> np.ndarray:
    """Fills in unknown [num_groups] values, by readers or else by neighbors."""
    reader = readers(self.groups, self.microbatch, known != UNKNOWN)
    return spread(self.groups, known[reader])

  def _stagings(self, layout: np.ndarray) -> list[np.ndarray]:
    """Returns [num_groups] stages balanced by time, on a layout of devices.

    If these exceed the memory of the devices, stages balanced within memory are
    returned as well.
    """
    layer, groups = self.layer_of_groups, self.groups
    replicas, stages = layout.shape
    held = np.bincount(layer, held_bytes(groups)) / replicas
    memory = groups.problem.cluster.memory_bytes
    limits: float | np.ndarray = float(memory[self.devices].min())
    if self.is_unequal:
      work_us = self._unequal_work(layout)
      limits = memory[layout].min(axis=0)
    else:
      work_us = np.bincount(layer, groups.fastest_us)
    of_layer = balanced_stages(work_us, self._cut_us, stages)
    stagings = [of_layer[layer]]
    if np.any(np.bincount(of_layer, held, stages) > limits):
      within = (held, limits)
      stagings.append(
        balanced_stages(work_us, self._cut_us, stages, within)[layer]
      )
    return stagings

  def _unequal_work(self, layout: np.ndarray) -> np.ndarray:
    """[stages, num_layers] microseconds, on the slowest device of a stage."""
    layer = self.layer_of_groups
    us = self.groups.possible_us
    return np.array(
      [
        max((np.bincount(layer, us[:, d]) for d in column), key=np.sum)
        for column in layout.T
      ]
    )

  @functools.cached_property
  def layer_of_groups(self) -> np.ndarray:
    """[num_groups] layer of each group, numbered in forward order."""
    groups = self.groups
    layer = self._follow(self._layers())
    exchanges = self._exchanges
    layer = np.where(exchanges.is_relay, layer[exchanges.variable], layer)
    layer = layer[self._served]
    layer = np.unique(layer, return_inverse=True)[1].reshape(-1)
    # Sort layers by the time from their first op to the end of the step. By
    # earliest start, a layer's reshaped weight would count as its input.
    after_us = groups.problem.upward_ranks_us
    of_group = np.zeros(groups.num_groups)
    np.maximum.at(of_group, groups.problem.group_of, after_us)
    of_group[self.microbatch != (0 if self.count > 1 else UNKNOWN)] = 0.0
    most = np.zeros(layer.max(initial=0) + 1)
    np.maximum.at(most, layer, of_group)
    rank = np.argsort(np.argsort(-most, kind="stable"), kind="stable")
    return merged_layers(rank[layer], groups.fastest_us, _MOST_LAYERS)

  def _layers(self) -> np.ndarray:
    """Returns [num_groups] layer of each group's longest op, or UNKNOWN."""
    graph = self.groups.problem.graph
    layer = graph.layer[longest_ops(self.groups)].astype(np.int64)
    work = self.groups.fastest_us
    in_passes = (self.microbatch != UNKNOWN) | (self.count == 1)
    total = work[in_passes].sum()
    known = work[in_passes & (layer != UNKNOWN)].sum()
    if known >= _LEAST_KNOWN * total:
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
    problem, layer = self.groups.problem, self.layer_of_groups
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


def device_grids(groups: GroupGraph) -> list[DeviceGrid]:
  """Returns the main devices, and all that can work where these differ."""
  if DeviceGrid not in groups.memo:
    devices, cluster = working_devices(groups), groups.problem.cluster
    alike = {
      (cluster.devices[i].kind, cluster.memory_bytes[i]) for i in devices
    }
    unequal = [] if len(alike) == 1 else [DeviceGrid(groups, devices)]
    groups.memo[DeviceGrid] = [DeviceGrid(groups), *unequal]
  return groups.memo[DeviceGrid]


def _layouts(
  devices: np.ndarray, replicas: int, stages: int
) -> list[np.ndarray]:
  """Returns [replicas, stages] devices: alike in replicas, alike in stages."""
  layouts = [devices.reshape(replicas, stages)]
  if min(replicas, stages) > 1:
    layouts.append(devices.reshape(stages, replicas).T)
  return layouts


def _of_groups(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups] microbatch of each group; UNKNOWN if ops differ."""
  problem = groups.problem
  least = np.full(groups.num_groups, np.iinfo(np.int64).max)
  most = np.full(groups.num_groups, UNKNOWN)
  of_op = problem.graph.microbatch.astype(np.int64)
  np.minimum.at(least, problem.group_of, of_op)
  np.maximum.at(most, problem.group_of, of_op)
  return np.where(least == most, most, UNKNOWN)


def data_parallel(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places each microbatch on its own device, as far as devices suffice.

  Raises TfplaceError if the step is not microbatched.
  """
  steps = microbatched_grids("data_parallel", groups)
  yield _placements((step, (step.most_replicas, 1)) for step in steps)


def pipeline(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places each stage of consecutive layers on its own device."""
  steps = device_grids(groups)
  yield _placements((step, (1, len(step.devices))) for step in steps)


def hybrid(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places replicas of a pipeline in the best grid of two or more of each.

  Raises TfplaceError without microbatches or with fewer than four devices.
  """
  steps = microbatched_grids("hybrid", groups)
  grids = [(step, grid) for step in steps for grid in step.grids()]
  if not grids:
    raise TfplaceError(
      "strategy 'hybrid' needs four devices for two replicas of two stages;"
      f" cluster {groups.problem.cluster.name!r} has {len(steps[-1].devices)}"
    )
  yield _placements(grids)


def microbatched_grids(strategy: str, groups: GroupGraph) -> list[DeviceGrid]:
  """Returns `device_grids`; raises TfplaceError without microbatches."""
  graph = groups.problem.graph
  if graph.num_microbatches < 2:
    raise TfplaceError(
      f"strategy {strategy!r} places a step that is split into"
      f" microbatches, which that of graph {graph.name!r} is not"
    )
  return device_grids(groups)


def _placements(
  grids: Iterable[tuple[DeviceGrid, tuple[int, int]]],
) -> Iterator[np.ndarray]:
  for step, grid in grids:
    yield from step.placements(*grid)
