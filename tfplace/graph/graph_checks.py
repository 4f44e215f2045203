"""Checks of the values of an `OpGraph`, with errors that name the element.

`OpGraph` calls them, so `graph` has no type here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.errors import FormatError, shown
from tfplace.graph.argument_checks import MAX_SUMMAND, check_name, check_summand

MAX_MICROBATCHES = 1_000_000
_MOST_LISTED = 8  # Ops of a cycle in a message.


def check_graph(graph: Any) -> None:
  """Raises FormatError for the first invalid value; see `OpGraph`."""
  ops, outputs = graph.num_ops, len(graph.output_bytes)
  for field, dtype, length in (
    ("output_offsets", np.int64, ops + 1),
    ("output_bytes", np.float64, outputs),
    ("persistent_bytes", np.float64, ops),
    ("temp_bytes", np.float64, ops),
    ("colocation", np.int32, ops),
    ("layer", np.int32, ops),
    ("microbatch", np.int32, ops),
    ("edge_src", np.int32, graph.num_edges),
    ("edge_output", np.int32, graph.num_edges),
    ("edge_dst", np.int32, graph.num_edges),
  ):
    _check_array(
      f"graph {graph.name!r}: {field}", getattr(graph, field), dtype, length
    )
  for field in ("time_us", "peak_us"):
    for kind, values in getattr(graph, field).items():
      name = f"{field}[{shown(kind)}]"
      _check_array(f"graph {graph.name!r}: {name}", values, np.float64, ops)
      # NaN marks ops that the kind cannot run.
      _check_values(graph, name, values, may_lack=field == "time_us")
  _check_names(graph)
  offsets = graph.output_offsets
  if offsets[0] or offsets[-1] != outputs or (np.diff(offsets) < 0).any():
    raise FormatError(f"graph {graph.name!r}: output_offsets do not add up")
  _check_values(graph, "persistent_bytes", graph.persistent_bytes)
  _check_values(graph, "temp_bytes", graph.temp_bytes)
  bad = ~_is_valid(graph.output_bytes)
  if bad.any():
    at = int(bad.argmax())
    op = int(np.searchsorted(offsets, at, side="right")) - 1
    value = graph.output_bytes[at]
    at -= int(offsets[op])
    check_summand(float(value), f"{_element(graph, op)}: output_bytes[{at}]")
  for field, most in (
    ("colocation", len(graph.colocation_names)),
    ("layer", len(graph.layer_names)),
    ("microbatch", MAX_MICROBATCHES),
  ):
    values = getattr(graph, field)
    bad = (values < -1) | (values >= most)
    if bad.any():
      op = int(bad.argmax())
      raise FormatError(
        f"{_element(graph, op)}: {field}: {values[op]} is not from 0 to"
        f" {most - 1}, or -1 for none",
        op=graph.names[op],
      )
  _check_edges(graph)


def _check_array(
  what: str, array: np.ndarray, dtype: type, length: int
) -> None:
  if array.dtype != dtype or array.shape != (length,):
    raise FormatError(
      f"{what} is {array.dtype} {array.shape}, not"
      f" {np.dtype(dtype)} ({length},)"
    )


def _check_values(
  graph: Any, field: str, values: np.ndarray, may_lack: bool = False
) -> None:
  bad = ~(_is_valid(values) | (np.isnan(values) & may_lack))
  if bad.any():
    op = int(bad.argmax())
    check_summand(float(values[op]), f"{_element(graph, op)}: {field}")


def _is_valid(values: np.ndarray) -> np.ndarray:
  return (values >= 0) & (values <= MAX_SUMMAND)


def _element(graph: Any, op: int) -> str:
  return f"ops[{op}] {graph.names[op]!r}"


def _check_names(graph: Any) -> None:
  check_name(graph.name, "name")
  for field, names in (
    ("ops", graph.names),
    ("types", graph.types),
    ("colocation", graph.colocation_names),
    ("layer", graph.layer_names),
    ("kinds", [*graph.time_us, *graph.peak_us]),
  ):
    for name in names:
      check_name(name, f"{field} of graph {graph.name!r}")
  if len(graph.types) != graph.num_ops:
    raise FormatError(f"graph {graph.name!r}: {len(graph.types)} op types")
  check_unique(graph.names)


def check_unique(names: Sequence[str]) -> None:
  """Raises FormatError if two ops have one name."""
  if len(set(names)) < len(names):
    name, _ = Counter(names).most_common(1)[0]
    at = [i for i, other in enumerate(names) if other == name][1]
    raise FormatError(f"ops[{at}]: duplicate name {name!r}", op=name)


def _check_edges(graph: Any) -> None:
  src, output, dst = graph.edge_src, graph.edge_output, graph.edge_dst
  for ops in (src, dst):
    bad = (ops < 0) | (ops >= graph.num_ops)
    if bad.any():
      edge = int(bad.argmax())
      raise FormatError(
        f"edges[{edge}] of graph {graph.name!r}: there is no op {ops[edge]}"
      )
  counts = np.diff(graph.output_offsets)
  bad = (output < -1) | (output >= counts[src])
  if bad.any():
    edge = int(bad.argmax())
    name = graph.names[src[edge]]
    raise FormatError(
      f"edge {name!r} -> {graph.names[dst[edge]]!r}: output {output[edge]} of"
      f" op {name!r}, which has {counts[src[edge]]} outputs",
      op=name,
    )
  order = graph.topological_order
  if len(order) < graph.num_ops:
    _raise_cycle(graph, order)


def _raise_cycle(graph: Any, order: np.ndarray) -> None:
  """Walks backward among the unsorted ops until one repeats."""
  offsets, edges = graph.in_csr
  missing = np.ones(graph.num_ops, bool)
  missing[order] = False
  op = int(missing.argmax())
  seen: dict[int, int] = {}  # Op -> number of steps before it.
  while op not in seen:
    seen[op] = len(seen)
    sources = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    op = next(int(s) for s in sources if missing[s])
  cycle = [op, *list(seen)[: seen[op] : -1], op]
  names = [repr(graph.names[i]) for i in cycle]
  if len(names) > _MOST_LISTED:
    names[_MOST_LISTED - 1 : -1] = [f"{len(names) - _MOST_LISTED} more"]
  raise FormatError(
    f"graph {graph.name!r} has a cycle: {' -> '.join(names)}",
    op=graph.names[op],
  )
