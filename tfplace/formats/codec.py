"""JSON of frozen dataclasses, read and written by their fields.

A field may be text, an integer, a number, a boolean, another dataclass, or a
tuple or mapping of these. A field with a default may be absent. Infinity is
written as null, as JSON has none, so null reads as infinity where a number is
required, and otherwise as None.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

EXTRA = "extra"  # Field that keeps the unknown keys of a file.
T = TypeVar("T")


def known_keys(kind: Any) -> frozenset[str]:
  """Returns the keys of a dataclass in JSON."""
  return frozenset(field.name for field in dataclasses.fields(kind)) - {EXTRA}


def to_json(value: Any) -> Any:
  """Converts a dataclass, or what its fields hold, to plain JSON values."""
  if dataclasses.is_dataclass(value):
    fields = {key: getattr(value, key) for key in _ordered_keys(value)}
    return {**to_json(fields), **getattr(value, EXTRA, {})}
  if isinstance(value, Mapping):
    return {key: to_json(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [to_json(item) for item in value]
  if isinstance(value, float):
    return json_file.plain_number(value) if math.isfinite(value) else None
  return value


def _ordered_keys(value: Any) -> list[str]:
  names = [field.name for field in dataclasses.fields(value)]
  return [name for name in names if name != EXTRA]


def from_json(kind: type[T], data: Any, where: str) -> T:
  """Builds a dataclass from parsed JSON.

  Raises:
    FormatError: a key is missing or has a wrong value. Names the element, whose
      path begins with `where`, and the value.
  """
  found = json_file.as_object(data, where)
  hints, values = typing.get_type_hints(kind), {}
  for field in dataclasses.fields(kind):  # type: ignore[arg-type]
    name, here = field.name, f"{where}: {field.name}"
    if name == EXTRA:
      known = known_keys(kind) | {"format"}
      values[name] = json_file.unknown_keys(found, known, where)
    elif name in found or field.default is field.default_factory:
      value = json_file.required(found, name, where)
      values[name] = _read(hints[name], value, here)
  return kind(**values)


def _read(hint: Any, value: Any, where: str) -> Any:
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    if value is None:
      return None
    (hint,) = (one for one in inner if one is not type(None))
    return _read(hint, value, where)
  if origin is tuple:
    items = json_file.as_list(value, where)
    return tuple(
      _read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(items)
    )
  if origin is not None:  # A mapping.
    items_of = json_file.as_object(value, where).items()
    return {
      key: _read(inner[1], item, f"{where}[{shown(key)}]")
      for key, item in items_of
    }
  if dataclasses.is_dataclass(hint):
    return from_json(hint, value, where)  # type: ignore[arg-type]
  if hint is float:
    if value is None:
      return math.inf
    return json_file.as_number(value, where, math.inf)
  if hint is int:
    number = json_file.as_number(value, where, math.inf)
    if not number.is_integer():
      raise FormatError(
        f"{where}: expected a whole number, found {shown(value)}"
      )
    return int(number)
  if not isinstance(value, hint):
    wanted = "true or false" if hint is bool else "text"
    raise FormatError(f"{where}: {shown(value)} is not {wanted}")
  return value
