"""Graph files (`tfplace.graph.v1`)."""

import math
from collections.abc import Mapping
from typing import Any

from tfplace.core.op_graph import CONTROL_OUTPUT, OpGraph, OpSpec, build_graph
from tfplace.core.recompute import is_clone
from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

FORMAT = "tfplace.graph.v1"
MAX_OPS = 2_000_000
MAX_EDGES = 20_000_000
MAX_MICROBATCHES = 1_000_000
_GRAPH_KEYS = frozenset({"format", "name", "ops", "edges"})
_OP_KEYS = frozenset(
  [
    "name",
    "type",
    "time_us",
    "output_bytes",
    "persistent_bytes",
    "temp_bytes",
    "colocation",
    "layer",
    "microbatch",
    "peak_us",
  ]
)
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
  raw_ops = json_file.as_list(json_file.required(data, "ops", "graph"), "ops")
  _check_count("ops", len(raw_ops), MAX_OPS)
  ops = [_op(raw, f"ops[{i}]") for i, raw in enumerate(raw_ops)]
  index: dict[str, int] = {}
  for i, op in enumerate(ops):
    if index.setdefault(op.name, i) != i:
      raise FormatError(f"ops[{i}]: duplicate name {op.name!r}", op=op.name)
  edges, edge_extra = _edges(data, ops, index)
  extras = [
    json_file.unknown_keys(op, _OP_KEYS, f"ops[{i}]")
    for i, op in enumerate(raw_ops)
  ]
  return build_graph(
    name,
    ops,
    edges,
    extra=json_file.unknown_keys(data, _GRAPH_KEYS, "graph"),
    op_extra={i: extra for i, extra in enumerate(extras) if extra},
    edge_extra=edge_extra,
  )


def _check_count(what: str, count: int, most: int) -> None:
  if count > most:
    raise FormatError(f"{what}: {count} elements, at most {most}")


def _op(raw: Any, where: str) -> OpSpec:
  as_name, as_number = json_file.as_name, json_file.as_number
  op = json_file.as_object(raw, where)
  name = as_name(json_file.required(op, "name", where), where)
  where = f"{where} {name!r}"

  def required(key: str) -> Any:
    return json_file.required(op, key, where)

  def optional_name(key: str) -> str | None:
    value = op.get(key)
    return None if value is None else as_name(value, f"{where}: {key}")

  def optional_bytes(key: str) -> float:
    return as_number(op.get(key, 0), f"{where}: {key}")

  def times(key: str, value: Any) -> dict[str, float]:
    of_kind = json_file.as_object(value, f"{where}: {key}")
    return {
      as_name(kind, f"{where}: {key}"): as_number(
        time, f"{where}: {key}[{kind!r}]"
      )
      for kind, time in of_kind.items()
    }

  sizes = json_file.as_list(required("output_bytes"), f"{where}: output_bytes")
  return OpSpec(
    name=name,
    type=as_name(required("type"), f"{where}: type"),
    time_us=times("time_us", required("time_us")),
    output_bytes=[
      as_number(size, f"{where}: output_bytes[{i}]")
      for i, size in enumerate(sizes)
    ],
    persistent_bytes=optional_bytes("persistent_bytes"),
    temp_bytes=optional_bytes("temp_bytes"),
    colocation=optional_name("colocation"),
    layer=optional_name("layer"),
    microbatch=_microbatch(op, where),
    peak_us=times("peak_us", op.get("peak_us", {})),
  )


def _microbatch(op: Mapping[str, Any], where: str) -> int | None:
  number = op.get("microbatch")
  if number is None:
    return None
  is_whole = isinstance(number, int) and not isinstance(number, bool)
  if not is_whole or not 0 <= number < MAX_MICROBATCHES:
    raise FormatError(
      f"{where}: microbatch {shown(number)} is not a whole number from 0 to"
      f" {MAX_MICROBATCHES - 1}"
    )
  return number


def _edges(
  data: Mapping[str, Any], ops: list[OpSpec], index: Mapping[str, int]
) -> tuple[list[tuple[int, int, int]], dict[int, dict[str, Any]]]:
  """Reads edges without repeats, and the unknown keys of each edge."""
  raw = json_file.as_list(json_file.required(data, "edges", "graph"), "edges")
  _check_count("edges", len(raw), MAX_EDGES)
  numbers: dict[tuple[int, int, int], int] = {}
  extras: dict[int, dict[str, Any]] = {}
  for i, item in enumerate(raw):
    where = f"edges[{i}]"
    edge = json_file.as_object(item, where)
    src = _op_index(edge, "src", where, index)
    dst = _op_index(edge, "dst", where, index)
    output = _output(edge.get("output", 0), where, ops[src])
    number = numbers.setdefault((src, output, dst), len(numbers))
    extra = json_file.unknown_keys(edge, _EDGE_KEYS, where)
    if extra:
      extras[number] = extra
  return list(numbers), extras


def _op_index(
  edge: Mapping[str, Any], end: str, where: str, index: Mapping[str, int]
) -> int:
  name = json_file.required(edge, end, where)
  if not isinstance(name, str) or name not in index:
    raise FormatError(f"{where}: {end} is unknown op {shown(name)}")
  return index[name]


def _output(value: Any, where: str, src: OpSpec) -> int:
  if isinstance(value, bool) or not isinstance(value, int):
    raise FormatError(f"{where}: output {shown(value)} is not a whole number")
  if not CONTROL_OUTPUT <= value < len(src.output_bytes):
    raise FormatError(
      f"{where}: output {shown(value)} of op {src.name!r}, which has"
      f" {len(src.output_bytes)} outputs",
      op=src.name,
    )
  return value


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
  temp = graph.temp_bytes.tolist()
  groups = [
    None if group < 0 else graph.colocation_names[group]
    for group in graph.colocation.tolist()
  ]
  layers, microbatches = graph.layer_paths, graph.microbatch.tolist()
  return [
    {
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
      "colocation": groups[i],
      **({} if layers[i] is None else {"layer": layers[i]}),
      **({} if microbatches[i] < 0 else {"microbatch": microbatches[i]}),
      **({"recompute": True} if is_clone(name) else {}),
      **_peak_to_json(
        {kind: number(column[i]) for kind, column in peaks if column[i]}
      ),
      **graph.op_extra.get(i, {}),
    }
    for i, name in enumerate(graph.names)
  ]


def _peak_to_json(peak_us: dict[str, Any]) -> dict[str, Any]:
  return {"peak_us": peak_us} if peak_us else {}
