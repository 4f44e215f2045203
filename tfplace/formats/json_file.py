"""Reads and writes JSON files, with limits and positions in error messages.

Invalid or hostile files are rejected with the file name and the position of the
problem. Everything that was read can be written again.
"""

import collections
import contextlib
import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfplace.errors import FormatError, TfplaceError, shown
from tfplace.formats import files
from tfplace.graph.argument_checks import check_name

Path = files.Path
# After decompression; a graph of 10**6 ops takes about 250 MB.
MAX_JSON_BYTES = 1 << 30
MAX_JSON_VALUES = 32_000_000  # A parsed value takes about 100 bytes.
MAX_DEPTH = 100  # Nesting under an unknown key.
_GZIP_LEVEL = 6  # Level 9 takes four times as long for 10% smaller files.


def read_json(
  path: Path, expected_format: str, max_bytes: int | None = None
) -> dict[str, Any]:
  """Reads one JSON object and checks its `format` key.

  Args:
    max_bytes: size limit; None for `MAX_JSON_BYTES`.

  Raises:
    FormatError: the file is unreadable, too large, not JSON (names line and
      column), not an object, has a repeated key, or has another format.
  """
  try:
    content = _read_text(path, max_bytes or MAX_JSON_BYTES)
  except OSError as error:
    reason = error.strerror or str(error)
    raise FormatError(f"{path}: cannot be read: {reason}") from error
  except (EOFError, zlib.error) as error:
    raise FormatError(f"{path}: broken gzip data: {error}") from error
  except ValueError as error:
    raise FormatError(f"{path}: {error}") from error
  with errors_naming(path):
    return _check_format(parse_json(content), expected_format)


def parse_json(content: bytes) -> Any:
  """Parses JSON, with a limit on its number of values.

  Raises:
    FormatError: it is no UTF-8, no JSON (names line and column), too long, too
      deep, or has a repeated key.
  """
  values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
  if values > MAX_JSON_VALUES:
    raise FormatError(f"{values} values of JSON, at most {MAX_JSON_VALUES}")
  try:
    return json.loads(content.decode("utf-8"), object_pairs_hook=_unique_keys)
  except UnicodeDecodeError as error:
    raise FormatError(f"not UTF-8 at byte {error.start}") from error
  except json.JSONDecodeError as error:
    raise FormatError(
      f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
    ) from error
  except (RecursionError, ValueError) as error:
    raise FormatError(str(error)) from error


@contextlib.contextmanager
def errors_naming(path: Path) -> Iterator[None]:
  """Prefixes the message of any `TfplaceError` inside with the file name."""
  try:
    yield
  except TfplaceError as error:
    raise type(error)(
      f"{path}: {error}",
      op=error.op,
      device=error.device,
      num_bytes=error.num_bytes,
    ) from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
  """Writes JSON atomically, compressed if the name ends in .gz.

  Raises:
    FormatError: the data is not JSON, or the file cannot be written. An
      existing file is left unchanged.
  """
  try:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    content = (text + "\n").encode("utf-8")
  except (TypeError, ValueError, RecursionError) as error:
    raise FormatError(f"{path}: cannot be written: {error}") from error
  if os.fspath(path).endswith(".gz"):
    content = gzip.compress(content, _GZIP_LEVEL, mtime=0)
  files.write_bytes(path, content)


def _read_text(path: Path, max_bytes: int) -> bytes:
  content = files.read_bytes(path, max_bytes)
  if os.fspath(path).endswith(".gz"):
    # Reads no more than the limit, however well the file is packed.
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
      content = unpacked.read(max_bytes + 1)
  if len(content) > max_bytes:
    raise ValueError(f"larger than {max_bytes} bytes of JSON")
  return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  result = dict(pairs)
  if len(result) < len(pairs):
    counts = collections.Counter(key for key, _ in pairs)
    twice = next(key for key, count in counts.items() if count > 1)
    raise ValueError(f"duplicate name {shown(twice)} in one JSON object")
  return result


def _check_format(data: Any, expected: str) -> dict[str, Any]:
  if not isinstance(data, dict):
    raise FormatError(f"expected a JSON object, found {type(data).__name__}")
  found = required(data, "format", "the file")
  if found != expected:
    raise FormatError(f"format is {shown(found)}, expected {expected!r}")
  return data


def required(data: Mapping[str, Any], key: str, where: str) -> Any:
  """Returns `data[key]`; a FormatError names a missing key and its element."""
  if key not in data:
    raise FormatError(f"{where}: missing required key {key!r}")
  return data[key]


def as_object(value: Any, where: str) -> dict[str, Any]:
  """Checks that a value is a JSON object and returns it."""
  if not isinstance(value, dict):
    raise FormatError(f"{where}: expected an object, found {shown(value)}")
  return value


def as_list(value: Any, where: str) -> list[Any]:
  """Checks that a value is a JSON array and returns it."""
  if not isinstance(value, list):
    raise FormatError(f"{where}: expected an array, found {shown(value)}")
  return value


def elements(
  data: Mapping[str, Any], key: str, where: str, most: int
) -> list[Any]:
  """Returns the required array `data[key]` of at most `most` elements."""
  found = as_list(required(data, key, where), key)
  if len(found) > most:
    raise FormatError(f"{key}: {len(found)} elements, at most {most}")
  return found


def as_name(value: Any, where: str) -> str:
  """Checks that a value is a non-empty printable string and returns it."""
  check_name(value, where)
  return value


def as_number(value: Any, where: str) -> float:
  """Checks that a value is a finite number of at least 0 and returns it."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise FormatError(f"{where}: expected a number, found {shown(value)}")
  try:
    number = float(value)
  except OverflowError:
    number = math.inf
  if not math.isfinite(number):
    raise FormatError(f"{where}: {shown(value)} is not finite")
  if number < 0:
    raise FormatError(f"{where}: {shown(value)} is negative")
  return number


def unknown_keys(
  data: Mapping[str, Any], known: Collection[str], where: str
) -> dict[str, Any]:
  """Returns the keys of an element that this version does not know.

  Raises:
    FormatError: a value cannot be written again (NaN, infinity, an unpaired
      surrogate, excessive nesting); names the key.
  """
  unknown = {key: data[key] for key in data if key not in known}
  for key, value in unknown.items():
    _check_writable(key, value, f"{where}: key {shown(key)}")
  return unknown


def _check_writable(key: str, value: Any, where: str) -> None:
  level = [key, value]
  for _ in range(MAX_DEPTH):
    below: list[Any] = []
    for item in level:
      if isinstance(item, dict):
        below += [*item, *item.values()]
      elif isinstance(item, list):
        below += item
      elif isinstance(item, float) and not math.isfinite(item):
        raise FormatError(f"{where}: {item} is not finite")
      elif isinstance(item, str) and not _is_text(item):
        raise FormatError(f"{where}: {shown(item)} is no Unicode text")
    if not below:
      return
    level = below
  raise FormatError(f"{where}: nested more than {MAX_DEPTH} deep")


def _is_text(value: str) -> bool:
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def plain_number(value: float) -> int | float:
  """Converts integral floats to ints, for readable files."""
  number = float(value)
  whole = number.is_integer() and abs(number) <= 2**53
  return int(number) if whole else number
