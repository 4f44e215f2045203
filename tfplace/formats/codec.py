"""JSON of frozen dataclasses, read and written by their fields.

A field may be text, an integer, a number, a boolean, another dataclass, or a
sequence or mapping of these. A field with a default may be absent; the field
`extra` keeps unknown keys. Infinity is null in JSON, which has none: null reads
as infinity in an `Unlimited` field, and otherwise as None.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

EXTRA = "extra"  # Field that keeps the unknown keys of a file.
T = TypeVar("T")
_Reader = Callable[[Any, str], Any]  # Converts a value at a place of the file.


def to_json(value: Any, sparse: bool = False) -> Any:
  """Converts a dataclass, or what its fields hold, to plain JSON values.

  Args:
    sparse: leave out fields that have their default.
  """
  if dataclasses.is_dataclass(value):
    result = {
      field.name: to_json(getattr(value, field.name), sparse)
      for field in dataclasses.fields(value)
      if field.name != EXTRA
      and not (sparse and getattr(value, field.name) == field.default)
    }
    return {**result, **getattr(value, EXTRA, {})}
  if isinstance(value, Mapping):
    return {key: to_json(item, sparse) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [to_json(item, sparse) for item in value]
  if isinstance(value, float):
    return json_file.plain_number(value) if math.isfinite(value) else None
  return value


def from_json(kind: type[T], data: Any, where: str) -> T:
  """Builds a dataclass from parsed JSON.

  Raises:
    FormatError: a key is missing or has a wrong value. Names the element, whose
      path begins with `where`, and the value.
  """
  found, values = json_file.as_object(data, where), {}
  known = {"format"}
  for name, read, is_required in _fields(kind):  # type: ignore[arg-type]
    known.add(name)
    if name == EXTRA:
      values[name] = json_file.unknown_keys(found, known, where)
    elif name in found or is_required:
      value = json_file.required(found, name, where)
      values[name] = read(value, f"{where}: {name}")
      if name == "name":
        where = f"{where} {value!r}"
  return kind(**values)


@functools.cache
def _fields(kind: type) -> list[tuple[str, _Reader, bool]]:
  """Returns name and reader of each field, and whether it is required."""
  hints = typing.get_type_hints(kind, include_extras=True)
  return [
    (f.name, _reader(hints[f.name]), f.default is f.default_factory)
    for f in dataclasses.fields(kind)
  ]


@functools.cache
def _reader(hint: Any) -> _Reader:
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any:
    return lambda value, where: value
  if origin is Annotated:
    read, empty, result = (
      (_reader(str), "", "") if inner[0] is str
      else (_reader(float), None, math.inf)
    )  # fmt: skip
    return lambda value, where: result if value == empty else read(value, where)
  if origin in (types.UnionType, typing.Union):
    (some,) = (_reader(one) for one in inner if one is not types.NoneType)
    return lambda value, where: None if value is None else some(value, where)
  if origin is tuple or origin is Sequence:
    one = _reader(inner[0])
    return lambda value, where: tuple(
      one(item, f"{where}[{i}]")
      for i, item in enumerate(json_file.as_list(value, where))
    )
  if origin is Mapping:
    each = _reader(inner[1])
    return lambda value, where: {
      json_file.as_name(key, where): each(item, f"{where}[{key!r}]")
      for key, item in json_file.as_object(value, where).items()
    }
  if dataclasses.is_dataclass(hint):
    return functools.partial(from_json, typing.cast(type, hint))
  readers: dict[Any, _Reader] = {
    str: json_file.as_name,
    float: json_file.as_number,
    int: _as_integer,
    bool: _as_bool,
  }
  return readers[hint]


def _as_integer(value: Any, where: str) -> int:
  number = json_file.as_number(value, where)
  if not number.is_integer():
    raise FormatError(f"{where}: expected a whole number, found {shown(value)}")
  return int(number)


def _as_bool(value: Any, where: str) -> bool:
  if not isinstance(value, bool):
    raise FormatError(f"{where}: {shown(value)} is not true or false")
  return value
