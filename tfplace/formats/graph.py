"""Graph files (`tfplace.graph.v1`)."""

import math
from collections.abc import Mapping
from typing import Any

from tfplace.errors import FormatError, shown
from tfplace.formats import codec, json_file
from tfplace.graph.graph_checks import check_unique
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph
from tfplace.graph.recompute import is_clone

FORMAT = "tfplace.graph.v1"
MAX_OPS = 2_000_000
MAX_EDGES = 20_000_000
_GRAPH_KEYS = frozenset({"format", "name", "ops", "edges"})
_EDGE_KEYS = frozenset({"src", "output", "dst"})


def load_graph(path: json_file.Path) -> OpGraph:
  """Reads a graph file; a FormatError names the file, element and value."""
  data = json_file.read_json(path, FORMAT)
  with json_file.errors_naming(path):
    return graph_from_json(data)


def save_graph(graph: OpGraph, path: json_file.Path) -> None:
  """Writes a graph file atomically; raises FormatError if it cannot."""
  json_file.write_json(path, graph_to_json(graph))


def graph_from_json(data: Mapping[str, Any]) -> OpGraph:
  """Converts a parsed file; a FormatError names the element and value."""
  name = json_file.as_name(json_file.required(data, "name", "graph"), "name")
  ops = []
  for i, raw in enumerate(json_file.elements(data, "ops", "graph", MAX_OPS)):
    op = codec.from_json(OpSpec, raw, f"ops[{i}]")
    json_file.required(raw, "output_bytes", f"ops[{i}] {op.name!r}")
    ops.append(op)
  check_unique([op.name for op in ops])
  index = {op.name: i for i, op in enumerate(ops)}
  numbers: dict[tuple[int, int, int], int] = {}  # Repeated edges count once.
  edge_extra: dict[int, dict[str, Any]] = {}
  raw_edges = json_file.elements(data, "edges", "graph", MAX_EDGES)
  for i, raw in enumerate(raw_edges):
    where = f"edges[{i}]"
    edge = json_file.as_object(raw, where)
    src, dst = (_op_index(edge, end, where, index) for end in ("src", "dst"))
    output = edge.get("output", 0)
    if isinstance(output, bool) or not isinstance(output, int):
      raise FormatError(
        f"{where}: output {shown(output)} is not a whole number"
      )
    if not -(2**31) <= output < 2**31:
      raise FormatError(f"{where}: there is no output {shown(output)}")
    number = numbers.setdefault((src, output, dst), len(numbers))
    if extra := json_file.unknown_keys(edge, _EDGE_KEYS, where):
      edge_extra[number] = extra
  extra = json_file.unknown_keys(data, _GRAPH_KEYS, "graph")
  return build_graph(name, ops, [*numbers], extra=extra, edge_extra=edge_extra)


def _op_index(
  edge: Mapping[str, Any], end: str, where: str, index: Mapping[str, int]
) -> int:
  name = json_file.required(edge, end, where)
  if not isinstance(name, str) or name not in index:
    raise FormatError(f"{where}: {end} is unknown op {shown(name)}")
  return index[name]


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
  """Converts a graph to JSON."""
  edges = zip(
    graph.edge_src.tolist(),
    graph.edge_output.tolist(),
    graph.edge_dst.tolist(),
    strict=True,
  )
  return {
    "format": FORMAT,
    "name": graph.name,
    "ops": _ops_to_json(graph),
    "edges": [
      {
        "src": graph.names[src],
        "output": output,
        "dst": graph.names[dst],
        **graph.edge_extra.get(i, {}),
      }
      for i, (src, output, dst) in enumerate(edges)
    ],
    **graph.extra,
  }


def _ops_to_json(graph: OpGraph) -> list[dict[str, Any]]:
  # Convert arrays to lists first; NumPy returns single elements slowly.
  number = json_file.plain_number
  times = [(kind, column.tolist()) for kind, column in graph.time_us.items()]
  peaks = [(kind, column.tolist()) for kind, column in graph.peak_us.items()]
  sizes = [number(size) for size in graph.output_bytes.tolist()]
  bounds = graph.output_offsets.tolist()
  persistent = graph.persistent_bytes.tolist()
  temp, microbatches = graph.temp_bytes.tolist(), graph.microbatch.tolist()
  groups = (*graph.colocation_names, None)  # Index -1 selects the last.
  colocation, layers = graph.colocation.tolist(), graph.layer_paths
  result = []
  for i, name in enumerate(graph.names):
    op = {
      "name": name,
      "type": graph.types[i],
      "time_us": {
        kind: number(column[i])
        for kind, column in times
        if not math.isnan(column[i])
      },
      "output_bytes": sizes[bounds[i] : bounds[i + 1]],
      "persistent_bytes": number(persistent[i]),
      "temp_bytes": number(temp[i]),
      "colocation": groups[colocation[i]],
    }
    if layers[i] is not None:
      op["layer"] = layers[i]
    if microbatches[i] >= 0:
      op["microbatch"] = microbatches[i]
    if is_clone(name):
      op["recompute"] = True
    if peak_us := {k: number(us[i]) for k, us in peaks if us[i]}:
      op["peak_us"] = peak_us
    result.append({**op, **graph.op_extra.get(i, {})})
  return result
