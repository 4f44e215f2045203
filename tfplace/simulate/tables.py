"""A problem packed into arrays for the simulation kernel.

The fields of an op or slot form a record of at most one cache line, because
memory access limits the simulator at 50,000 ops.
"""

from typing import NamedTuple

import numpy as np

from tfplace.graph.order import RANK
from tfplace.graph.paths import longest_paths
from tfplace.graph.problem import Problem
from tfplace.simulate.links import least_transfer_us, link_table

DEVICE = np.dtype(
  [
    ("op_overhead_us", np.float64),
    ("memory_bytes", np.float64),
    ("kind", np.int32),
  ],
  align=True,
)
OP = np.dtype(
  [
    ("start_bytes", np.float64),
    ("end_bytes", np.float64),
    ("tail_us", np.float64),
    ("slots", np.int32),
    ("slots_end", np.int32),
    ("shared", np.int32),
    ("shared_end", np.int32),
  ],
  align=True,
)
SLOT = np.dtype(
  [
    ("bytes", np.float64),
    ("src", np.int32),
    ("key", np.int32),
    ("reader", np.int32),
    ("left", np.int32),
    ("readers", np.int32),
    ("readers_end", np.int32),
  ],
  align=True,
)


class Tables(NamedTuple):
  """A packed problem, read-only and shared by all threads.

  A slot is an output (or the control output) that some op reads. Slots are
  numbered in the order (producer, output). A slot with several readers is
  shared.

  Attributes:
    num_ops: number of ops.
    num_devices: number of devices.
    devices: [num_devices] records:
        op_overhead_us: idle gap after each op.
        memory_bytes: capacity.
        kind: column of `time_us`.
    time_us: [num_ops, num_kinds] float64, NaN where an op cannot run.
    persistent_bytes: [num_ops] float64.
    in_degree: [num_ops] int32 number of incoming edges.
    sources: [num_sources] int32 ops without inputs, sorted by `op_key`.
    ops: [num_ops] records:
        start_bytes: allocated at the start: temporary memory and outputs.
        end_bytes: freed at the end, besides shared inputs: temporary memory,
          outputs without readers, inputs without other readers.
        tail_us: least time from the op's end to the end of the step.
        slots, slots_end: range of its slots.
        shared, shared_end: range of its `shared_inputs`.
    is_ranked: True if devices take ops by rank, False if by ready time.
    op_key: [num_ops] int64 rank of each op, or, without ranks, its position,
      which breaks ties between equal ready times.
    shared_inputs: [num_shared_inputs] int32 shared slots above 0 bytes that
      each op reads.
    slots: [num_slots] records:
        bytes: size of the output, 0 for control.
        src: producer.
        key: rank of the slot by (producer's position, output).
        reader: the only reader, or -1 if the slot is shared.
        left: offset of a shared slot in `Workspace.left`.
        readers, readers_end: range of its `readers`.
    readers: [num_edges] int32 readers of each slot, by position.
    num_shared: number of shared slots.
    links: [num_devices, num_devices] records, see `links.LINK`.
    has_message_costs: True if transfers occupy their endpoint devices, else
      None. The types differ so that a kernel is compiled for each case.
  """

  num_ops: int
  num_devices: int
  devices: np.ndarray
  time_us: np.ndarray
  persistent_bytes: np.ndarray
  in_degree: np.ndarray
  sources: np.ndarray
  ops: np.ndarray
  is_ranked: bool
  op_key: np.ndarray
  shared_inputs: np.ndarray
  slots: np.ndarray
  readers: np.ndarray
  num_shared: int
  links: np.ndarray
  has_message_costs: bool | None

  @property
  def tail_us(self) -> np.ndarray:
    """[num_ops] float64 `tail_us` of `ops`."""
    return self.ops["tail_us"]


def packed(problem: Problem) -> Tables:
  """Returns the tables of a problem, packed once for all of its orders."""
  known: dict[str, Tables] = problem.memo.setdefault(Tables, {})
  if not known:
    known[problem.order] = pack(problem)
  elif problem.order not in known:
    tables, op_key = next(iter(known.values())), problem.priorities()
    known[problem.order] = tables._replace(
      sources=_sources(tables.in_degree, op_key),
      is_ranked=problem.order == RANK,
      op_key=op_key,
    )
  return known[problem.order]


def pack(problem: Problem, position: np.ndarray | None = None) -> Tables:
  """Packs a problem once for many simulations.

  Args:
    position: [num_ops] position of each op for breaking ties if the ops have
      been renumbered; None means 0, 1, ...
  """
  graph, cluster = problem.graph, problem.cluster
  if position is None:
    position = np.arange(graph.num_ops)
  slots, slot_of = _slots(problem, position)
  ops, shared_inputs = _ops(problem, slots, slot_of)
  devices, time_us = _devices(problem)
  in_degree = np.bincount(graph.edge_dst, minlength=graph.num_ops)
  op_key = problem.priorities(position)
  by_slot = np.lexsort((position[graph.edge_dst], slot_of))
  return Tables(
    num_ops=graph.num_ops,
    num_devices=cluster.num_devices,
    devices=devices,
    time_us=time_us,
    persistent_bytes=graph.persistent_bytes.astype(np.float64),
    in_degree=in_degree.astype(np.int32),
    sources=_sources(in_degree, op_key),
    ops=ops,
    is_ranked=problem.order == RANK,
    op_key=op_key,
    shared_inputs=shared_inputs,
    slots=slots,
    readers=graph.edge_dst[by_slot].astype(np.int32),
    num_shared=int((slots["reader"] < 0).sum()),
    links=link_table(cluster),
    has_message_costs=cluster.has_message_costs or None,
  )


def _sources(in_degree: np.ndarray, op_key: np.ndarray) -> np.ndarray:
  sources = np.flatnonzero(in_degree == 0)
  return sources[np.argsort(op_key[sources])].astype(np.int32)


def _devices(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
  cluster = problem.cluster
  result = np.zeros(cluster.num_devices, DEVICE)
  result["op_overhead_us"] = cluster.op_overhead_us
  result["memory_bytes"] = cluster.memory_bytes
  kinds = [device.kind for device in cluster.devices]
  _, first, at = np.unique(kinds, return_index=True, return_inverse=True)
  result["kind"] = at
  return result, np.ascontiguousarray(problem.time_us[:, first], np.float64)


def _slots(
  problem: Problem, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the slots and the slot of each edge."""
  graph = problem.graph
  by_src = np.lexsort(
    (position[graph.edge_dst], graph.edge_output, graph.edge_src)
  )
  src, output = graph.edge_src[by_src], graph.edge_output[by_src]
  is_first = np.ones(len(src), bool)
  is_first[1:] = (src[1:] != src[:-1]) | (output[1:] != output[:-1])
  first = np.flatnonzero(is_first)
  slot_of = np.empty(len(src), np.int32)
  slot_of[by_src] = np.cumsum(is_first) - 1
  slots, slot_output = np.zeros(len(first), SLOT), output[first]
  slots["src"] = src[first]
  data = slot_output >= 0
  slots["bytes"][data] = graph.output_bytes[
    graph.output_offsets[src[first][data]] + slot_output[data]
  ]
  by_key = np.lexsort((slot_output, position[slots["src"]]))
  slots["key"][by_key] = np.arange(len(slots))
  slots["readers"] = first
  slots["readers_end"] = np.append(first, len(src))[1:]
  is_shared = slots["readers_end"] - first > 1
  slots["reader"] = np.where(is_shared, -1, graph.edge_dst[by_src][first])
  slots["left"] = (np.cumsum(is_shared) - 1) * problem.cluster.num_devices
  return slots, slot_of


def _ops(
  problem: Problem, slots: np.ndarray, slot_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  graph = problem.graph
  producer = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_offsets))
  outputs = np.bincount(producer, graph.output_bytes, graph.num_ops)
  read = np.bincount(slots["src"], slots["bytes"], graph.num_ops)
  unshared = slots[slots["reader"] >= 0]
  inputs = np.bincount(unshared["reader"], unshared["bytes"], graph.num_ops)
  _, by_dst = graph.in_csr
  of_edge = slots[slot_of[by_dst]]
  shared = by_dst[(of_edge["reader"] < 0) & (of_edge["bytes"] > 0)]
  ops = np.zeros(graph.num_ops, OP)
  ops["start_bytes"] = graph.temp_bytes + outputs
  ops["end_bytes"] = ops["start_bytes"] - read + inputs
  ops["tail_us"] = _tails(problem)
  ops["slots"], ops["slots_end"] = _parts(slots["src"], graph.num_ops)
  readers = graph.edge_dst[shared]
  ops["shared"], ops["shared_end"] = _parts(readers, graph.num_ops)
  return ops, slot_of[shared]


def _parts(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the start and end of each key's range in an array sorted by key."""
  ends = np.cumsum(np.bincount(keys, minlength=num_keys))
  return np.concatenate(([0], ends))[:-1], ends


def _tails(problem: Problem) -> np.ndarray:
  """Returns [num_ops] least microseconds from an op's end to the step's end.

  The value is the longest path with each op on its fastest kind. After an op of
  nonzero time, its reader waits for the idle gap on the same device or for a
  transfer to another one.
  """
  graph, cluster = problem.graph, problem.cluster
  gap_us = np.minimum(
    cluster.op_overhead_us.min(), least_transfer_us(cluster, graph.edge_bytes)
  )
  gap_us[problem.fastest_us[graph.edge_src] <= 0] = 0.0
  edge_us = gap_us + problem.fastest_us[graph.edge_dst]
  # Stay below the engine's sums, which add in another order.
  return longest_paths(graph, edge_us, backward=True) * (1 - 1e-9)
