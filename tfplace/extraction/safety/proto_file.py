"""Reads a protocol buffer of a stranger: limits first, then the parser.

A parser turns two bytes of a hostile file into a hundred in memory, and takes
a second for each megabyte of text; so the size of a file and, in a binary
one, the number of its nodes are checked before it is parsed.
"""

import os
import re
from collections.abc import Iterator, Mapping

from google.protobuf import message, text_format

from tfplace.errors import ExtractionError
from tfplace.formats import files

MAX_BYTES = (1 << 31) - 1  # what a protocol buffer can hold
MAX_TEXT_BYTES = 128 << 20  # minutes of parsing; weights do not belong in text
MAX_NODES = 4_000_000  # about 0.5 GB parsed, if they are empty
# Where the nodes lie: field -> what lies below it; None is a node.
Fields = Mapping[int, "Fields | None"]
GRAPH_DEF: Fields = {1: None, 2: {1: {3: None}}}  # own nodes, and functions'
SAVED_MODEL: Fields = {2: {2: GRAPH_DEF}}  # of every MetaGraphDef
_TEXT = (".pbtxt", ".txt")
_TEXT_NODE = re.compile(rb"\bnode(?:_def)?\s*[:{<]")


def read(path: str, result: message.Message, fields: Fields) -> None:
  """Parses a file, as text by its suffix, into `result`.

  Args:
    path: of the file.
    result: an empty message.
    fields: of that message, those that lead to nodes.

  Raises:
    ExtractionError: unreadable, too large, too many nodes, or not parsable.
  """
  kind = type(result).__name__
  is_text = path.endswith(_TEXT)
  data = _read_bytes(path, kind, MAX_TEXT_BYTES if is_text else MAX_BYTES)
  try:
    if _nodes_exceed(data, fields, is_text):
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
    # A pipe or a device has no size, and may never end.
    data = b"" if size > limit else files.read_bytes(path, limit)
  except OSError as error:
    raise ExtractionError(
      f"{path!r} cannot be read: {error.strerror}"
    ) from error
  if max(size, len(data)) > limit:
    size = max(size, len(data))
    raise ExtractionError(
      f"{path!r} has {size} bytes or more; a {kind} file has {limit} at most",
      num_bytes=size,
    )
  return data


def _nodes_exceed(data: bytes, fields: Fields, is_text: bool) -> bool:
  if is_text:
    found: Iterator[object] = _TEXT_NODE.finditer(data)
  else:
    found = _nodes(memoryview(data), fields)
  return any(count > MAX_NODES for count, _ in enumerate(found, 1))


class _BrokenError(Exception):
  """The bytes are no protocol buffer."""


def _nodes(data: memoryview, fields: Fields) -> Iterator[None]:
  """One item for each node; nothing is copied or kept."""
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
  """The number that begins at a position, and where it ends."""
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
