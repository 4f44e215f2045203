"""Limits on untrusted files, checked before a file is read in full.

A protocol buffer parser turns two bytes of a hostile file into a hundred in
memory, and takes a second per megabyte of text, so the size of a file and the
number of its nodes are checked before parsing. TensorFlow follows calls while
it imports a graph: it runs out of stack if a function calls itself, and out of
time if thirty functions each call the next one four times, so inlined nodes are
counted without inlining. Keras stores its zip members uncompressed, and weights
as HDF5 datasets of plain bytes. A file that unpacks to many times its size, or
whose weights are in another file, is therefore hostile.
"""

import graphlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping

import h5py
import tensorflow as tf
from google.protobuf import message, text_format

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.formats import files

MAX_BYTES = (1 << 31) - 1  # limit of a protocol buffer
MAX_TEXT_BYTES = 128 << 20  # minutes of parsing; weights do not belong in text
MAX_NODES = 4_000_000  # about 0.5 GB when parsed, if empty
MAX_KERAS_GROWTH = 20  # largest ratio of unpacked size to file size
FREE_KERAS_BYTES = 256 << 20  # allowed unpacked size of a file of any size
MAX_INLINED_NODES = 5_000_000
MAX_DEPTH = 100
# Message fields that lead to nodes: field number -> fields below it; None marks
# a node.
Fields = Mapping[int, "Fields | None"]
GRAPH_DEF: Fields = {1: None, 2: {1: {3: None}}}  # own nodes, and functions'
SAVED_MODEL: Fields = {2: {2: GRAPH_DEF}}  # the graph of every MetaGraphDef
_TEXT = (".pbtxt", ".txt")
_TEXT_NODE = re.compile(rb"\bnode(?:_def)?\s*[:{<]")


def read_proto(path: str, result: message.Message, fields: Fields) -> None:
  """Parses a file into the empty message `result`.

  The suffix of the path decides between text and binary. `fields` are the
  fields of the message that lead to nodes.
  """
  kind = type(result).__name__
  is_text = path.endswith(_TEXT)
  data = _read_bytes(path, kind, MAX_TEXT_BYTES if is_text else MAX_BYTES)
  try:
    nodes: Iterator[object] = (
      _TEXT_NODE.finditer(data) if is_text else _nodes(memoryview(data), fields)
    )
    if any(count > MAX_NODES for count, _ in enumerate(nodes, 1)):
      raise ExtractionError(
        f"{path!r} holds more than {MAX_NODES} nodes, the most that a {kind}"
        " may have here"
      )
    if is_text:
      text_format.Parse(data.decode(), result)
    else:
      result.ParseFromString(data)
  except (
    message.DecodeError,
    text_format.ParseError,
    UnicodeDecodeError,
    RecursionError,
    _BrokenError,
  ) as error:
    raise ExtractionError(
      f"{path!r} is not a {kind}, or is damaged: {error}"
    ) from error


def _read_bytes(path: str, kind: str, limit: int) -> bytes:
  try:
    size = os.stat(path).st_size
    # A pipe or a device has no size, and reading it may never end.
    data = b"" if size > limit else files.read_bytes(path, limit)
  except OSError as error:
    raise ExtractionError(
      f"{path!r} cannot be read: {error.strerror}"
    ) from error
  size = max(size, len(data))
  if size > limit:
    raise ExtractionError(
      f"{path!r} has {size} bytes or more; a {kind} file has {limit} at most",
      num_bytes=size,
    )
  return data


class _BrokenError(Exception):
  """Raised for bytes that are not a protocol buffer."""


def _nodes(data: memoryview, fields: Fields) -> Iterator[None]:
  at, end = 0, len(data)
  while at < end:
    key, at = _varint(data, at)
    wire = key & 7
    if wire == 0:
      _, at = _varint(data, at)
    elif wire in (1, 5):
      at += 8 if wire == 1 else 4
    elif wire == 2:
      size, at = _varint(data, at)
      if size > end - at:
        raise _BrokenError("it ends in the middle of an element")
      below = fields.get(key >> 3, {})
      if below is None:
        yield None
      elif below:
        yield from _nodes(data[at : at + size], below)
      at += size
    else:
      raise _BrokenError(f"wire type {wire} is none that is in use")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
  result = shift = 0
  while shift < 70:
    if at >= len(data):
      raise _BrokenError("it ends in the middle of a number")
    byte = data[at]
    at += 1
    result |= (byte & 127) << shift
    if byte < 128:
      return result, at
    shift += 7
  raise _BrokenError("a number has more than ten bytes")


def check_calls(graph_def: tf.compat.v1.GraphDef) -> None:
  """Checks calls in the graph and in every function, even uncalled ones.

  Raises:
    ExtractionError: a function is recursive; calls are nested deeper than
      `MAX_DEPTH`; or the graph or a function exceeds `MAX_INLINED_NODES` nodes
      with its calls inlined.
  """
  functions = node_lib.functions_of(graph_def)
  gradients = {
    g.function_name: g.gradient_func for g in graph_def.library.gradient
  }

  def called(nodes: Iterable[node_lib.NodeDef]) -> list[str]:
    names = []
    for node in nodes:
      new = node_lib.called_functions(node)
      if node.op == "SymbolicGradient":
        new += [gradients[name] for name in new if name in gradients]
      names += [name for name in new if name in functions]
    return names

  calls = {name: called(f.node_def) for name, f in functions.items()}
  try:
    order = [*graphlib.TopologicalSorter(calls).static_order()]
  except graphlib.CycleError as error:
    raise ExtractionError(
      f"function {error.args[1][0][:80]!a} is recursive: it calls itself"
    ) from None
  sizes: dict[str, int] = {}  # with all calls inlined
  depths: dict[str, int] = {}
  for name in order:
    depths[name] = 1 + max((depths[n] for n in calls[name]), default=0)
    if depths[name] > MAX_DEPTH:
      raise ExtractionError(
        f"function {name[:80]!a} has calls that are nested deeper than"
        f" {MAX_DEPTH}"
      )
    sizes[name] = len(functions[name].node_def)
    sizes[name] += sum(sizes[n] for n in calls[name])
    _check_size(sizes[name], f"function {name[:80]!a}")
  total = len(graph_def.node) + sum(sizes[n] for n in called(graph_def.node))
  _check_size(total, "the graph")


def _check_size(size: int, what: str) -> None:
  if size > MAX_INLINED_NODES:
    raise ExtractionError(
      f"with its functions inlined {what} has {size} nodes, more than the"
      f" {MAX_INLINED_NODES} that are accepted"
    )


def check_keras_file(path: str) -> None:
  """Checks a `.keras` or `.h5` file.

  Raises:
    ExtractionError: the file has another format, is damaged, unpacks to too
      many bytes, or refers to weights in another file.
  """
  try:
    if path.endswith(".keras"):
      _check_zip(path)
    else:
      with h5py.File(path, "r") as file:
        _check_h5(file, path, path)
  except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"Keras model file {path!r} cannot be read: {reason}"
    ) from error


def _check_zip(path: str) -> None:
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
    _check_growth(path, sum(member.file_size for member in members), path)
    for member in members:
      size = member.file_size
      if member.filename.endswith(".json") and size > MAX_TEXT_BYTES:
        raise ExtractionError(
          f"Keras model file {path!r}: {member.filename[:80]!a} has {size}"
          f" bytes; at most {MAX_TEXT_BYTES} are accepted",
          num_bytes=size,
        )
    for member in members:
      if member.filename.endswith(".h5"):
        with archive.open(member) as stored, h5py.File(stored, "r") as file:
          _check_h5(file, path, f"{member.filename[:80]} of {path}")


def _check_h5(file: h5py.File, path: str, what: str) -> None:
  external = file.id.links.visit(_external_name, info=True)
  if external is not None:
    raise _elsewhere(path, external.decode(errors="replace"))
  datasets: list[h5py.Dataset] = []

  def collect(_: str, item: object) -> None:
    if isinstance(item, h5py.Dataset):
      datasets.append(item)

  file.visititems(collect)
  for dataset in datasets:
    if dataset.external or dataset.is_virtual:
      raise _elsewhere(path, str(dataset.name))
  total = sum(int(d.size) * d.dtype.itemsize for d in datasets)
  _check_growth(path, total, what)


def _external_name(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
  """Stops a visit of links at a link to another file."""
  return name if info.type == h5py.h5l.TYPE_EXTERNAL else None


def _elsewhere(path: str, name: str) -> ExtractionError:
  return ExtractionError(
    f"Keras model file {path!r}: {name[:80]!a} lies in another file, which is"
    " not read"
  )


def _check_growth(path: str, num_bytes: int, what: str) -> None:
  limit = max(FREE_KERAS_BYTES, MAX_KERAS_GROWTH * os.path.getsize(path))
  if num_bytes > limit:
    raise ExtractionError(
      f"Keras model file {path!r} would unpack to {num_bytes} bytes ({what});"
      f" a file of its size may have {limit} at most",
      num_bytes=num_bytes,
    )
