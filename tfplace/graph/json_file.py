"""Reading and writing of the JSON formats: limits, positions, whole writes.

What a file means is the affair of the `*_format` modules; this one only makes
sure that a hostile or broken file is refused by name and position, and that
an interrupted write leaves the old file.
"""

import contextlib
import gzip
import json
import math
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from tfplace.errors import FormatError, TfplaceError

Path = str | os.PathLike[str]
MAX_JSON_BYTES = 1 << 30  # unpacked; a graph of 10**6 ops takes about 250 MB
MAX_JSON_VALUES = 32_000_000  # about 100 bytes each once they are parsed
MAX_NAME_LENGTH = 4096
# Graphs shrink 20 to 40 times; data made to fill memory, a thousand times.
MAX_GZIP_RATIO = 250
_UNSUSPICIOUS_BYTES = 64 << 20
_CHUNK_BYTES = 16 << 20
_GZIP_LEVEL = 6  # 9 takes four times as long for a tenth less


def read_json(path: Path, expected_format: str) -> dict[str, Any]:
  """Reads one JSON object and checks its `format` key.

  Raises:
    FormatError: unreadable, too large, not JSON (with line and column), not
      an object, a repeated key, or another format.
  """
  try:
    text = _read_bytes(path).decode("utf-8")
    data = json.loads(text, object_pairs_hook=_unique_keys)
  except OSError as error:
    reason = error.strerror or str(error)
    raise FormatError(f"{path}: cannot be read: {reason}") from error
  except (EOFError, zlib.error) as error:
    raise FormatError(f"{path}: broken gzip data: {error}") from error
  except UnicodeDecodeError as error:
    raise FormatError(f"{path}: not UTF-8 at byte {error.start}") from error
  except json.JSONDecodeError as error:
    raise FormatError(
      f"{path}: not JSON at line {error.lineno}, column {error.colno}:"
      f" {error.msg}"
    ) from error
  except (RecursionError, ValueError) as error:
    raise FormatError(f"{path}: {error}") from error
  with errors_naming(path):
    return _check_format(data, expected_format)


@contextlib.contextmanager
def errors_naming(path: Path) -> Iterator[None]:
  """Puts the file's name before the message of any `TfplaceError` inside."""
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
  """Writes JSON (gzip of it where the name ends in .gz), whole or not at all.

  Raises:
    FormatError: the file cannot be written; an old one is untouched.
  """
  text = json.dumps(data, ensure_ascii=False, allow_nan=False)
  content = (text + "\n").encode("utf-8")
  if os.fspath(path).endswith(".gz"):
    content = gzip.compress(content, _GZIP_LEVEL, mtime=0)
  write_bytes(path, content)


def write_bytes(path: Path, content: bytes) -> None:
  """Replaces a file in one step: a reader sees the old or the new one.

  Raises:
    FormatError: the file cannot be written; an old one is untouched.
  """
  target = os.path.realpath(path)
  temporary = None
  try:
    handle, temporary = tempfile.mkstemp(
      prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target)
    )
    with os.fdopen(handle, "wb") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, _mode(target))
    os.replace(temporary, target)
  except OSError as error:
    reason = error.strerror or str(error)
    raise FormatError(f"{path}: cannot be written: {reason}") from error
  finally:
    if temporary is not None and os.path.exists(temporary):
      os.unlink(temporary)


def _mode(target: str) -> int:
  """The old file's mode, else what `open` would give a new one."""
  if os.path.exists(target):
    return os.stat(target).st_mode & 0o777
  mask = os.umask(0)
  os.umask(mask)
  return 0o666 & ~mask


def _read_bytes(path: Path) -> bytes:
  with open(path, "rb") as file:
    if os.fspath(path).endswith(".gz"):
      content = _unpacked(file)
    else:
      content = file.read(MAX_JSON_BYTES + 1)
  if len(content) > MAX_JSON_BYTES:
    raise ValueError(f"larger than {MAX_JSON_BYTES} bytes of JSON")
  values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
  if values > MAX_JSON_VALUES:
    raise ValueError(f"{values} values of JSON, at most {MAX_JSON_VALUES}")
  return content


def _unpacked(file: BinaryIO) -> bytes:
  """At most `MAX_JSON_BYTES` + 1; stops early where gzip packed too well."""
  packed = max(1, os.fstat(file.fileno()).st_size)
  allowed = max(_UNSUSPICIOUS_BYTES, MAX_GZIP_RATIO * packed)
  chunks, size = [], 0
  with gzip.GzipFile(fileobj=file) as unpacked:
    while size <= MAX_JSON_BYTES:
      chunk = unpacked.read(min(_CHUNK_BYTES, MAX_JSON_BYTES + 1 - size))
      if not chunk:
        break
      chunks.append(chunk)
      size += len(chunk)
      if size > allowed:
        raise ValueError(
          f"{packed} bytes of gzip unpack to more than {MAX_GZIP_RATIO} times"
          " as many, which no graph does"
        )
  return b"".join(chunks)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  result = dict(pairs)
  if len(result) < len(pairs):
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise ValueError(f"duplicate name {twice!r} in one JSON object")
  return result


def _check_format(data: Any, expected: str) -> dict[str, Any]:
  if not isinstance(data, dict):
    raise FormatError(f"expected a JSON object, found {type(data).__name__}")
  found = required(data, "format", "the file")
  if found != expected:
    raise FormatError(f"format is {found!r}, expected {expected!r}")
  return data


def required(data: Mapping[str, Any], key: str, where: str) -> Any:
  """`data[key]`, or an error that names the element and the key."""
  if key not in data:
    raise FormatError(f"{where}: missing required key {key!r}")
  return data[key]


def as_object(value: Any, where: str) -> dict[str, Any]:
  """A JSON object, or an error that names the element and the value."""
  if not isinstance(value, dict):
    raise FormatError(f"{where}: expected an object, found {_shown(value)}")
  return value


def as_list(value: Any, where: str) -> list[Any]:
  """A JSON array, or an error that names the element and the value."""
  if not isinstance(value, list):
    raise FormatError(f"{where}: expected an array, found {_shown(value)}")
  return value


def as_name(value: Any, where: str) -> str:
  """A non-empty printable string; control characters are refused."""
  if not isinstance(value, str) or not value:
    raise FormatError(f"{where}: expected a name, found {_shown(value)}")
  if len(value) > MAX_NAME_LENGTH:
    raise FormatError(
      f"{where}: name of {len(value)} characters, at most {MAX_NAME_LENGTH}"
    )
  if not value.isprintable():
    raise FormatError(f"{where}: name {value!r} has a control character")
  return value


def as_number(value: Any, where: str) -> float:
  """A finite number of at least 0."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise FormatError(f"{where}: expected a number, found {_shown(value)}")
  try:
    number = float(value)
  except OverflowError:
    number = math.inf
  if not math.isfinite(number):
    raise FormatError(f"{where}: {_shown(value)} is not finite")
  if number < 0:
    raise FormatError(f"{where}: {_shown(value)} is negative")
  return number


def unknown_keys(
  data: Mapping[str, Any], known: frozenset[str]
) -> dict[str, Any]:
  """The keys of an element that this version does not know."""
  return {key: data[key] for key in data if key not in known}


def plain_number(value: float) -> int | float:
  """An int where the number is one, for files that people read."""
  number = float(value)
  whole = number.is_integer() and abs(number) <= 2**53
  return int(number) if whole else number


def _shown(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 60 else text[:57] + "..."
