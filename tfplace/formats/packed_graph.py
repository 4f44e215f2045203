"""Packed graphs: a fast binary format for caches.

A packed graph has a digest that detects truncated or damaged data, and an `npz`
archive of the arrays of a graph and of a JSON text with all else. Users
exchange graphs in the JSON format of `formats.graph` instead.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np

from tfplace.errors import FormatError
from tfplace.graph.op_graph import OpGraph

_MAGIC = b"tfplace.packed_graph.v5\n"
_DIGEST = hashlib.sha256
_BODY = len(_MAGIC) + _DIGEST().digest_size
_NAMES = ("names", "types", "colocation_names", "layer_names")
_BY_KIND = ("time_us", "peak_us")
_BY_NUMBER = ("op_extra", "edge_extra")
_ARRAYS = (
  *("output_offsets", "output_bytes", "persistent_bytes", "temp_bytes"),
  *("colocation", "layer", "microbatch", "edge_src", "edge_output", "edge_dst"),
)


def pack_graph(graph: OpGraph) -> bytes:
  """Packs a graph; raises FormatError if JSON cannot hold its unknown keys."""
  text = {
    **{name: getattr(graph, name) for name in ("name", "extra", *_NAMES)},
    **{name: list(getattr(graph, name)) for name in _BY_KIND},
    **{name: list(getattr(graph, name).items()) for name in _BY_NUMBER},
  }
  try:
    encoded = json.dumps(text, ensure_ascii=False).encode("utf-8")
  except (TypeError, ValueError) as error:
    raise FormatError(f"graph {graph.name!r}: {error}") from error
  arrays: dict[str, Any] = {
    "text": np.frombuffer(encoded, np.uint8),
    **{name: getattr(graph, name) for name in _ARRAYS},
    **{name: [*getattr(graph, name).values()] for name in _BY_KIND},
  }
  archive = io.BytesIO()
  np.savez(archive, **arrays)
  content = archive.getvalue()
  return b"".join((_MAGIC, _DIGEST(content).digest(), content))


def unpack_graph(content: bytes) -> OpGraph:
  """Unpacks a graph; raises FormatError if damaged or of another version."""
  body = content[_BODY:]
  if content[:_BODY] != _MAGIC + _DIGEST(body).digest():
    raise FormatError("packed graph: of no known version, or damaged")
  with np.load(io.BytesIO(body)) as archive:
    arrays = dict(archive)
  fields: dict[str, Any] = json.loads(arrays["text"].tobytes())
  for name in _NAMES:
    fields[name] = tuple(fields[name])
  for name in _BY_KIND:
    fields[name] = dict(zip(fields[name], arrays[name], strict=True))
  for name in _BY_NUMBER:
    fields[name] = dict(fields[name])
  return OpGraph(**fields, **{name: arrays[name] for name in _ARRAYS})
