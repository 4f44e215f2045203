"""A placement problem: a graph, a cluster, and the derived constraints."""

import dataclasses
import functools
from typing import Any

import numpy as np

from tfplace.errors import ProblemError, shown
from tfplace.graph import order as orders
from tfplace.graph import paths
from tfplace.graph.cluster import Cluster
from tfplace.graph.csr import all_of_group, csr
from tfplace.graph.op_graph import OpGraph


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """A graph to place on a cluster.

  A group is the unit of placement: the ops of one colocation group, or a single
  free op. Groups are numbered by their first op.

  Attributes:
    graph: graph to place.
    cluster: devices to place it on.
    proven_us: lower bound of the step time proven elsewhere (see
      `tfplace.bounds`), in any execution order; 0 without one. It enters
      `lower_bound_us`.
    order: execution order of ready ops, one of `tfplace.graph.order.ORDERS`.
    off_cpu: [num_ops] bool, ops that no CPU may run, or None for none. They run
      on other devices.
    groups: [num_ops] labels of groups, from 0 on, in place of the colocation
      groups of the graph; None takes these.

  Raises:
    ProblemError: an argument is of another type, an op or a whole colocation
      group cannot run on any device, the graph has times for GPUs or CPUs but
      none for a named kind of them, or the order is unknown.
  """

  graph: OpGraph
  cluster: Cluster
  proven_us: float = 0.0
  order: str = orders.ARRIVAL
  off_cpu: np.ndarray | None = None
  groups: np.ndarray | None = None

  def __post_init__(self) -> None:
    for name, kind in (("graph", OpGraph), ("cluster", Cluster)):
      value = getattr(self, name)
      if not isinstance(value, kind):
        raise ProblemError(
          f"{name} is {shown(value)}; it must be a {kind.__name__}: load_{name}"
          " reads one from a file, cluster_preset and extract make one"
        )
    orders.check_order(self.order)
    self._check_kinds()
    stuck = np.flatnonzero(~self.allowed.any(axis=1))
    if len(stuck):
      name = self.graph.names[stuck[0]]
      raise ProblemError(
        f"op {name!r} ({self.graph.types[stuck[0]]}) runs on no device kind of"
        f" cluster {self.cluster.name!r}, which has"
        f" {', '.join(dict.fromkeys(d.kind for d in self.cluster.devices))}:"
        " give its time_us on one of them",
        op=name,
      )
    stuck = np.flatnonzero(~self.group_allowed.any(axis=1))
    if len(stuck):
      op = int(np.flatnonzero(self.group_of == stuck[0])[0])
      raise ProblemError(
        f"colocation group {self.group_name(op)!r} (op"
        f" {self.graph.names[op]!r} and others) has no device of cluster"
        f" {self.cluster.name!r} that runs all of it",
        op=self.graph.names[op],
      )

  def _check_kinds(self) -> None:
    """Checks that the graph tells kinds of GPUs or CPUs apart if needed."""
    known = self.graph.time_us
    for device in self.cluster.devices:
      if device.kind not in known and device.base_kind in known:
        raise ProblemError(
          f"graph {self.graph.name!r} has times for {device.base_kind!r} but"
          f" none for {device.kind!r} of cluster {self.cluster.name!r}: extract"
          " it for this cluster (tfplace-extract --cluster)",
          device=device.name,
        )

  def in_order(self, order: str) -> "Problem":
    """Returns the problem with another order, or itself if it is the same."""
    return self if order == self.order else self._with(order=order)

  def without_cpus(self, off_cpu: np.ndarray) -> "Problem":
    """Returns the problem with [num_ops] ops that no CPU may run."""
    stale = ("allowed", "group_allowed", "allowed_sets", "off_cpu_key")
    return self._with(*stale, off_cpu=off_cpu)

  def with_bound(self, proven_us: float) -> "Problem":
    """Returns the problem with another proven bound."""
    return self._with(proven_us=proven_us)

  def _with(self, *stale: str, **changes: Any) -> "Problem":
    """Returns a changed copy that keeps the derived values but for `stale`."""
    kept = {**self.__dict__, "memo": self.memo, **changes}
    result = object.__new__(Problem)
    result.__dict__.update({k: v for k, v in kept.items() if k not in stale})
    result.__post_init__()
    return result

  @functools.cached_property
  def memo(self) -> dict[Any, Any]:
    """Values that other modules derive, shared with changed copies."""
    return {}

  @functools.cached_property
  def off_cpu_key(self) -> bytes | None:
    """`off_cpu`, as part of a key of `memo`."""
    return None if self.off_cpu is None else self.off_cpu.tobytes()

  @property
  def key(self) -> tuple[Any, ...]:
    """Identifies a problem among those that share a `memo`."""
    return self.order, self.proven_us, self.off_cpu_key

  def __getstate__(self) -> dict[str, Any]:
    return {k: v for k, v in self.__dict__.items() if k != "memo"}

  def without_derived(self) -> "Problem":
    """Returns a copy without cached values, to be sent to another process."""
    return dataclasses.replace(
      self,
      graph=dataclasses.replace(self.graph),
      cluster=dataclasses.replace(self.cluster),
    )

  def priorities(self, position: np.ndarray | None = None) -> np.ndarray:
    """Returns [num_ops] int64 priorities; the smallest ready op runs first.

    In order of arrival, priorities only break ties between equal ready times.

    Args:
      position: [num_ops] position of each op if the ops have been renumbered;
        None means 0, 1, ...
    """
    if self.order == orders.RANK:
      return orders.ranks(self.graph, self.upward_ranks_us, position)
    ops = np.arange(self.graph.num_ops) if position is None else position
    return ops.astype(np.int64)

  @functools.cached_property
  def time_us(self) -> np.ndarray:
    """[num_ops, num_devices] float64 op times; NaN where an op cannot run."""
    none = np.full(self.graph.num_ops, np.nan)
    columns = [
      self.graph.time_us.get(d.kind, none) for d in self.cluster.devices
    ]
    return np.ascontiguousarray(np.stack(columns, axis=1))

  @functools.cached_property
  def allowed(self) -> np.ndarray:
    """[num_ops, num_devices] bool; True where the op may run."""
    allowed = self.has_kernel
    if self.off_cpu is not None:
      allowed &= ~(self.off_cpu[:, np.newaxis] & self.cluster.is_cpu)
    return allowed

  @property
  def has_kernel(self) -> np.ndarray:
    """[num_ops, num_devices] bool; True where the op has a kernel."""
    return ~np.isnan(self.time_us)

  @functools.cached_property
  def group_of(self) -> np.ndarray:
    """[num_ops] int32 group of each op."""
    keys, graph = self.groups, self.graph
    if keys is None:
      alone = len(graph.colocation_names) + np.arange(graph.num_ops)
      keys = np.where(graph.colocation < 0, alone, graph.colocation)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse.reshape(-1)]

  def group_name(self, op: int) -> str:
    """Returns the name of the group of an op that shares its device."""
    if self.groups is not None:
      return str(self.groups[op])
    return self.graph.colocation_names[self.graph.colocation[op]]

  @property
  def num_groups(self) -> int:
    return int(self.group_of.max()) + 1 if self.graph.num_ops else 0

  @functools.cached_property
  def group_allowed(self) -> np.ndarray:
    """[num_groups, num_devices] bool; True where all ops of the group run."""
    return all_of_group(self.group_of, self.allowed, self.num_groups)

  @functools.cached_property
  def group_persistent_bytes(self) -> np.ndarray:
    """[num_groups] float64 bytes that each group holds for the whole step."""
    return np.bincount(
      self.group_of, self.graph.persistent_bytes, self.num_groups
    )

  @functools.cached_property
  def allowed_sets(self) -> tuple[np.ndarray, np.ndarray]:
    """Distinct sets of devices that groups may run on.

    [num_sets, num_devices] bool in ascending order, and the [num_groups] set of
    each group.
    """
    allowed = self.group_allowed
    # Devices of one kind have equal columns. Distinct columns sort faster.
    columns = {
      allowed[:, i].tobytes(): i for i in reversed(range(allowed.shape[1]))
    }
    few = allowed[:, sorted(columns.values())]
    _, first, of_group = np.unique(
      few, axis=0, return_index=True, return_inverse=True
    )
    return allowed[first], of_group.reshape(-1)

  @functools.cached_property
  def group_ops(self) -> tuple[np.ndarray, np.ndarray]:
    """Ops by group: [num_groups + 1] int64 offsets, [num_ops] int32 ops."""
    offsets, ops = csr(self.group_of, self.num_groups)
    return offsets, ops.astype(np.int32)

  @functools.cached_property
  def fastest_us(self) -> np.ndarray:
    """[num_ops] float64 time of each op on its fastest kind in the cluster."""
    return np.nanmin(self.time_us, axis=1)

  @property
  def lower_bound_us(self) -> float:
    """Best known lower bound of the step time of any feasible placement."""
    return max(self.simple_bound_us, self.proven_us)

  @functools.cached_property
  def simple_bound_us(self) -> float:
    """Lower bound by rule 7 (bound) of docs/simulation.md."""
    devices = self.cluster.num_devices
    busy_ops = int(np.count_nonzero(self.fastest_us > 0))
    overhead = max(0, busy_ops - devices) * self.cluster.op_overhead_us.min()
    work = (float(self.fastest_us.sum()) + float(overhead)) / devices
    return max(self.longest_path_us, work)

  @functools.cached_property
  def earliest_start_us(self) -> np.ndarray:
    """[num_ops] earliest starts; communication and overhead are free."""
    return paths.longest_paths(self.graph, self.fastest_us[self.graph.edge_src])

  @functools.cached_property
  def starts(self) -> tuple[np.ndarray, np.ndarray]:
    """[num_ops] float64 start and [num_ops] int64 companion of each op.

    Starts are `earliest_start_us`, but ops without inputs start as late as
    their first consumer allows. That is their companion; other ops have
    themselves.
    """
    graph = self.graph
    start = self.earliest_start_us.copy()
    beside = np.arange(graph.num_ops)
    _, edges = graph.out_csr
    edges = edges[np.diff(graph.in_csr[0])[graph.edge_src[edges]] == 0]
    # Sort consumers by start; ties go to the first by (output, position).
    src, dst = graph.edge_src[edges], graph.edge_dst[edges]
    ranked = np.lexsort((start[dst], src))
    ops, first = np.unique(src[ranked], return_index=True)
    beside[ops] = dst[ranked[first]]
    latest = start[beside[ops]] - self.fastest_us[ops]
    start[ops] = np.maximum(0.0, latest)
    return start, beside

  @functools.cached_property
  def upward_ranks_us(self) -> np.ndarray:
    """[num_ops] longest paths from the start of each op; transfers are free."""
    return paths.upward_ranks(self.graph, self.fastest_us)

  @functools.cached_property
  def longest_path_us(self) -> float:
    """Longest path of `fastest_us`; communication and overhead are free."""
    ends = self.earliest_start_us + self.fastest_us
    return float(ends.max(initial=0.0))
