"""Copies of graphs: some of the ops, or other ops that share a device."""

import collections
import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np

from tfplace.errors import FormatError
from tfplace.graph.csr import offsets_of
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.paths import DisjointSets


def subgraph(graph: OpGraph, ops: np.ndarray) -> OpGraph:
  """Returns the graph of the given ops, renumbered; edges keep their order.

  Args:
    ops: [new_num_ops] distinct positions in any order. Op i of the result is op
      `ops[i]` of `graph`; other ops and their edges are dropped.
  """
  rank = np.full(graph.num_ops, -1, np.int32)
  rank[ops] = np.arange(len(ops), dtype=np.int32)
  is_kept = (rank[graph.edge_src] >= 0) & (rank[graph.edge_dst] >= 0)
  edges = np.flatnonzero(is_kept)
  counts = np.diff(graph.output_offsets)[ops]
  offsets = offsets_of(counts)
  # The old index of each output: its op's first output plus its offset there.
  within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
  was = np.repeat(graph.output_offsets[:-1][ops], counts) + within
  return dataclasses.replace(
    graph,
    names=tuple(graph.names[i] for i in ops),
    types=tuple(graph.types[i] for i in ops),
    time_us={kind: us[ops] for kind, us in graph.time_us.items()},
    output_offsets=offsets,
    output_bytes=graph.output_bytes[was],
    persistent_bytes=graph.persistent_bytes[ops],
    temp_bytes=graph.temp_bytes[ops],
    colocation=graph.colocation[ops],
    layer=graph.layer[ops],
    microbatch=graph.microbatch[ops],
    edge_src=rank[graph.edge_src[edges]],
    edge_output=graph.edge_output[edges],
    edge_dst=rank[graph.edge_dst[edges]],
    peak_us={kind: us[ops] for kind, us in graph.peak_us.items()},
    op_extra={
      int(rank[i]): extra for i, extra in graph.op_extra.items() if rank[i] >= 0
    },
    edge_extra={
      int(np.searchsorted(edges, i)): extra
      for i, extra in graph.edge_extra.items()
      if is_kept[i]
    },
  )


def keep_together(graph: OpGraph, groups: Iterable[Sequence[int]]) -> OpGraph:
  """Returns a copy of the graph in which each group shares a device.

  Groups are lists of op positions. Groups that share an op, and existing
  colocation groups that they touch, are merged.
  """
  sets = DisjointSets(graph.num_ops)
  first: dict[int, int] = {}  # The first op of each existing colocation group.
  for op, group in enumerate(graph.colocation.tolist()):
    if group >= 0:
      sets.union(first.setdefault(group, op), op)
  for ops in groups:
    for op in ops:
      sets.union(ops[0], op)
  roots = sets.roots().tolist()
  sizes = collections.Counter(roots)
  shared = [root for root, size in sizes.items() if size > 1]
  number = {root: i for i, root in enumerate(shared)}
  return dataclasses.replace(
    graph,
    colocation=np.array([number.get(root, -1) for root in roots], np.int32),
    colocation_names=tuple(graph.names[root] for root in shared),
  )


def matching(graph: OpGraph, pattern: str) -> list[int]:
  """Returns the positions of ops whose name or scope matches a pattern.

  Args:
    pattern: shell-style pattern: `*` matches any text, `?` one character.
      "encoder" and "encoder/*" both match all ops in that scope.

  Raises:
    FormatError: no op matches.
  """
  positions = [
    i
    for i, op in enumerate(graph.names)
    if any(
      fnmatch.fnmatchcase(name, pattern)
      or fnmatch.fnmatchcase(name, f"{pattern}/*")
      for name in graph.members.get(op, (op,))
    )
  ]
  if not positions:
    raise FormatError(
      f"{pattern!r} is like the name of no op of graph {graph.name!r}, whose"
      f" ops have names such as {', '.join(map(repr, graph.names[:3]))}"
    )
  return positions
