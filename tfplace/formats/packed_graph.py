"""Packed graphs: a fast binary format for caches.

A packed graph has a digest that detects truncated or damaged data, the length
of a JSON text, that text, and the arrays of ops and edges one after another.
Users exchange graphs in the JSON format of `formats.graph` instead.
"""

import hashlib
import json
from typing import Any

import numpy as np

from tfplace.errors import FormatError
from tfplace.graph.csr import offsets_of
from tfplace.graph.op_graph import OpGraph

_MAGIC = b"tfplace.packed_graph.v4\n"
_DIGEST = hashlib.sha256
_BODY = len(_MAGIC) + _DIGEST().digest_size
_LENGTH_BYTES = 8
_TEXTS = ("name", "names", "colocation_names", "layer_names", "extra")
# Arrays of one number per op, per output and per edge.
_PER_OP = {
  "type": np.int32,
  "output_count": np.int32,
  "persistent_bytes": np.float64,
  "temp_bytes": np.float64,
  "colocation": np.int32,
  "layer": np.int32,
  "microbatch": np.int32,
}
_PER_EDGE = ("edge_src", "edge_output", "edge_dst")


def pack_graph(graph: OpGraph) -> bytes:
  """Packs a graph; raises FormatError if JSON cannot hold its unknown keys."""
  types = {name: i for i, name in enumerate(dict.fromkeys(graph.types))}
  text = {
    **{name: getattr(graph, name) for name in _TEXTS},
    "types": list(types),
    "kinds": list(graph.time_us),
    "peak_kinds": list(graph.peak_us),
    "num_outputs": len(graph.output_bytes),
    "num_edges": graph.num_edges,
    "op_extra": list(graph.op_extra.items()),
    "edge_extra": list(graph.edge_extra.items()),
  }
  try:
    header = json.dumps(text, ensure_ascii=False).encode("utf-8")
  except (TypeError, ValueError) as error:
    raise FormatError(f"graph {graph.name!r}: {error}") from error
  computed = {
    "type": np.array([types[name] for name in graph.types], np.int32),
    "output_count": np.diff(graph.output_offsets).astype(np.int32),
  }
  arrays = [
    *(computed.get(name, getattr(graph, name, None)) for name in _PER_OP),
    graph.output_bytes,
    *(getattr(graph, name) for name in _PER_EDGE),
    *graph.time_us.values(),
    *graph.peak_us.values(),
  ]
  length = len(header).to_bytes(_LENGTH_BYTES, "little")
  content = b"".join([length, header, *(array.tobytes() for array in arrays)])
  return b"".join((_MAGIC, _DIGEST(content).digest(), content))


def unpack_graph(content: bytes) -> OpGraph:
  """Unpacks a graph; raises FormatError if damaged or of another version."""
  body = content[_BODY:]
  if content[:_BODY] != _MAGIC + _DIGEST(body).digest():
    raise FormatError("packed graph: of no known version, or damaged")
  start = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
  text: dict[str, Any] = json.loads(body[_LENGTH_BYTES:start])
  names, types = tuple(text["names"]), text["types"]
  at = start

  def take(length: int, dtype: type = np.float64) -> np.ndarray:
    nonlocal at
    array = np.frombuffer(body, dtype, length, at) if length else np.zeros(0)
    at += array.nbytes
    return array.astype(dtype)  # A copy that is aligned.

  ops = {name: take(len(names), dtype) for name, dtype in _PER_OP.items()}
  output_bytes = take(text["num_outputs"])
  edges = {name: take(text["num_edges"], np.int32) for name in _PER_EDGE}
  time_us = {kind: take(len(names)) for kind in text["kinds"]}
  peak_us = {kind: take(len(names)) for kind in text["peak_kinds"]}
  type_of = ops.pop("type")
  return OpGraph(
    name=text["name"],
    names=names,
    types=tuple(types[i] for i in type_of.tolist()),
    time_us=time_us,
    output_offsets=offsets_of(ops.pop("output_count")),
    output_bytes=output_bytes,
    **ops,
    colocation_names=tuple(text["colocation_names"]),
    layer_names=tuple(text["layer_names"]),
    **edges,
    peak_us=peak_us,
    extra=dict(text["extra"]),
    op_extra={int(i): dict(extra) for i, extra in text["op_extra"]},
    edge_extra={int(i): dict(extra) for i, extra in text["edge_extra"]},
  )
