"""Packed graphs: a fast binary format for caches, validated on reading.

A packed graph is NumPy's `.npz` (without pickles) after a digest that detects
truncated or damaged data. Every index is checked before it reaches compiled
code. Users exchange graphs in the JSON format of `formats.graph` instead.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.core.csr import offsets_of
from tfplace.core.op_graph import CONTROL_OUTPUT, OpGraph
from tfplace.errors import FormatError
from tfplace.formats.graph import MAX_MICROBATCHES
from tfplace.formats.json_file import parse_json

_MAGIC = b"tfplace.packed_graph.v3\n"
_DIGEST = hashlib.sha256
_BODY = len(_MAGIC) + _DIGEST().digest_size
_PER_OP = {
  "type": np.int32,
  "output_count": np.int32,
  "persistent_bytes": np.float64,
  "temp_bytes": np.float64,
  "colocation": np.int32,
  "layer": np.int32,
  "microbatch": np.int32,
}
_PER_EDGE = {
  "edge_src": np.int32,
  "edge_output": np.int32,
  "edge_dst": np.int32,
}
_BROKEN = (
  AttributeError,
  EOFError,
  LookupError,
  MemoryError,
  NotImplementedError,
  OSError,
  TypeError,
  ValueError,
  zipfile.BadZipFile,
)


def pack_graph(graph: OpGraph) -> bytes:
  """Packs a graph; raises FormatError if JSON cannot hold its unknown keys."""
  types = {name: i for i, name in enumerate(dict.fromkeys(graph.types))}
  try:
    text = json.dumps(_text(graph, list(types)), ensure_ascii=False)
  except (TypeError, ValueError) as error:
    raise FormatError(f"graph {graph.name!r}: {error}") from error
  arrays = {
    name: getattr(graph, name)
    for name in (*_PER_OP, *_PER_EDGE, "output_bytes")
    if name not in ("type", "output_count")
  }
  body = io.BytesIO()
  np.savez(
    body,
    text=np.frombuffer(text.encode("utf-8"), np.uint8),
    type=np.array([types[name] for name in graph.types], np.int32),
    output_count=np.diff(graph.output_offsets).astype(np.int32),
    time_us=_by_kind(graph.time_us, graph.num_ops),
    peak_us=_by_kind(graph.peak_us, graph.num_ops),
    **arrays,
  )
  content = body.getvalue()
  return b"".join((_MAGIC, _DIGEST(content).digest(), content))


def _by_kind(values: Mapping[str, np.ndarray], num_ops: int) -> np.ndarray:
  """Returns [num_kinds, num_ops] float64."""
  rows = np.array(list(values.values()), np.float64)
  return rows.reshape(len(values), num_ops)


def _text(graph: OpGraph, types: list[str]) -> dict[str, Any]:
  """Returns all fields of a graph except the arrays of ops and edges."""
  return {
    "name": graph.name,
    "names": graph.names,
    "types": types,
    "kinds": list(graph.time_us),
    "peak_kinds": list(graph.peak_us),
    "colocation_names": graph.colocation_names,
    "layer_names": graph.layer_names,
    "extra": dict(graph.extra),
    "op_extra": [[i, dict(x)] for i, x in graph.op_extra.items()],
    "edge_extra": [[i, dict(x)] for i, x in graph.edge_extra.items()],
  }


def unpack_graph(content: bytes) -> OpGraph:
  """Unpacks a graph; raises FormatError if damaged or of another version."""
  body = content[_BODY:]
  if content[:_BODY] != _MAGIC + _DIGEST(body).digest():
    raise FormatError("packed graph: of no known version, or damaged")
  try:
    return _graph(_arrays(body))
  except _BROKEN as error:
    raise FormatError(f"packed graph: {error}") from error


def _arrays(body: bytes) -> dict[str, np.ndarray]:
  """Reads the arrays of an `.npz` that take no more than its own size."""
  with zipfile.ZipFile(io.BytesIO(body)) as archive:
    infos = archive.infolist()
    is_plain = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    _check(is_plain, "it is compressed")
    size = sum(max(info.file_size, info.compress_size) for info in infos)
    _check(size <= len(body), "its arrays are larger than the file")
    return {
      info.filename.removesuffix(".npy"): _array(archive.read(info))
      for info in infos
    }


def _array(content: bytes) -> np.ndarray:
  """Reads an array of NumPy's format 1.0 without copying it."""
  stream = io.BytesIO(content)
  _check(np.lib.format.read_magic(stream) == (1, 0), "of no known version")
  shape, by_column, dtype = np.lib.format.read_array_header_1_0(stream)
  _check(not by_column and not dtype.hasobject, "an array has another layout")
  return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def _graph(arrays: Mapping[str, np.ndarray]) -> OpGraph:
  text = parse_json(arrays["text"].tobytes())
  names = _strings(text["names"])
  types = _strings(text["types"])
  groups = _strings(text["colocation_names"])
  layers = _strings(text["layer_names"])
  count, sizes = len(names), arrays["output_bytes"]
  num_edges = len(arrays["edge_src"])
  _check(len(set(names)) == count, "a name occurs twice")
  for wanted, length in ((_PER_OP, count), (_PER_EDGE, num_edges)):
    for name, dtype in wanted.items():
      _check_array(arrays[name], dtype, (length,), name)
  kinds, peak_kinds = _strings(text["kinds"]), _strings(text["peak_kinds"])
  _check_array(arrays["time_us"], np.float64, (len(kinds), count), "time_us")
  shape = len(peak_kinds), count
  _check_array(arrays["peak_us"], np.float64, shape, "peak_us")
  _check_array(sizes, np.float64, sizes.shape[:1], "output_bytes")
  counts = arrays["output_count"]
  _check_range(counts, 0, len(sizes), "output_count")
  offsets = offsets_of(counts)
  _check(int(offsets[-1]) == len(sizes), "outputs do not add up")
  _check_range(arrays["type"], 0, len(types) - 1, "type")
  _check_range(arrays["colocation"], -1, len(groups) - 1, "colocation")
  _check_range(arrays["layer"], -1, len(layers) - 1, "layer")
  _check_range(arrays["microbatch"], -1, MAX_MICROBATCHES - 1, "microbatch")
  _check_edges(arrays, counts)
  _check_values(arrays)
  return OpGraph(
    name=str(text["name"]),
    names=names,
    types=tuple(types[i] for i in arrays["type"].tolist()),
    time_us=dict(zip(kinds, arrays["time_us"], strict=True)),
    output_offsets=offsets,
    output_bytes=sizes,
    persistent_bytes=arrays["persistent_bytes"],
    temp_bytes=arrays["temp_bytes"],
    colocation=arrays["colocation"],
    colocation_names=groups,
    layer=arrays["layer"],
    layer_names=layers,
    microbatch=arrays["microbatch"],
    **{name: arrays[name] for name in _PER_EDGE},
    peak_us=dict(zip(peak_kinds, arrays["peak_us"], strict=True)),
    extra=dict(text["extra"]),
    op_extra={int(i): dict(extra) for i, extra in text["op_extra"]},
    edge_extra={int(i): dict(extra) for i, extra in text["edge_extra"]},
  )


def _check_edges(arrays: Mapping[str, np.ndarray], counts: np.ndarray) -> None:
  last = len(counts) - 1
  src, output = arrays["edge_src"], arrays["edge_output"]
  _check_range(src, 0, last, "edge_src")
  _check_range(arrays["edge_dst"], 0, last, "edge_dst")
  _check_range(output, CONTROL_OUTPUT, np.iinfo(np.int32).max, "edge_output")
  _check(bool((output < counts[src]).all()), "an edge reads no output")


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
  for name in (
    "output_bytes",
    "persistent_bytes",
    "temp_bytes",
    "time_us",
    "peak_us",
  ):
    values = arrays[name]
    fine = np.isfinite(values) & (values >= 0)
    if name == "time_us":  # NaN marks kinds without a kernel.
      fine |= np.isnan(values)
    _check(bool(fine.all()), f"{name} is negative or not finite")


def _check(is_fine: bool, what: str) -> None:
  if not is_fine:
    raise FormatError(f"packed graph: {what}")


def _check_array(
  array: np.ndarray, dtype: type, shape: tuple[int, ...], name: str
) -> None:
  _check(
    array.dtype == dtype and array.shape == shape,
    f"{name} is {array.dtype} {array.shape}",
  )


def _check_range(array: np.ndarray, low: int, high: int, name: str) -> None:
  fine = not len(array) or (array.min() >= low and array.max() <= high)
  _check(bool(fine), f"{name} is not within {low} to {high}")


def _strings(values: Any) -> tuple[str, ...]:
  _check(
    isinstance(values, list) and all(isinstance(v, str) for v in values),
    "a name is no text",
  )
  return tuple(values)
