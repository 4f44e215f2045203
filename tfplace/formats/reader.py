"""Checked access to the keys of parsed JSON, for nested dataclasses."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfplace.errors import FormatError, shown
from tfplace.formats import json_file


@dataclasses.dataclass(frozen=True)
class Reader:
  """Checked access to the keys of one element."""

  data: Mapping[str, Any]
  where: str

  def _get(self, key: str) -> Any:
    return json_file.required(self.data, key, self.where)

  def at(self, key: str) -> str:
    return f"{self.where}: {key}"

  def has(self, key: str) -> bool:
    """Returns whether a key is there and not null."""
    return self.data.get(key) is not None

  def text(self, key: str) -> str:
    value = self._get(key)
    if not isinstance(value, str):
      raise FormatError(f"{self.at(key)}: expected text, found {shown(value)}")
    return value

  def texts(self, key: str) -> tuple[str, ...]:
    items = json_file.as_list(self.data.get(key, []), self.at(key))
    return tuple(json_file.as_name(item, self.at(key)) for item in items)

  def number(self, key: str) -> float:
    return json_file.as_number(self._get(key), self.at(key), math.inf)

  def number_or(self, key: str, default: Any) -> Any:
    """Returns a number, or the default for null."""
    return default if self._get(key) is None else self.number(key)

  def count(self, key: str) -> int:
    return self.whole(self._get(key), key)

  def whole(self, value: Any, key: str) -> int:
    number = json_file.as_number(value, self.at(key), math.inf)
    if not number.is_integer():
      raise FormatError(
        f"{self.at(key)}: expected a whole number, found {shown(value)}"
      )
    return int(number)

  def flag(self, key: str) -> bool:
    value = self._get(key)
    if not isinstance(value, bool):
      raise FormatError(f"{self.at(key)}: {shown(value)} is not true or false")
    return value

  def optional(self, key: str) -> "Reader | None":
    value = self.data.get(key)
    if value is None:
      return None
    return Reader(json_file.as_object(value, self.at(key)), self.at(key))

  def inner(self, key: str) -> "Reader":
    found = json_file.as_object(self._get(key), self.at(key))
    return Reader(found, self.at(key))

  def each(self, key: str, read: Callable[["Reader"], Any]) -> tuple[Any, ...]:
    items = json_file.as_list(self._get(key), self.at(key))
    found = []
    for i, item in enumerate(items):
      where = f"{self.where}: {key}[{i}]"
      found.append(read(Reader(json_file.as_object(item, where), where)))
    return tuple(found)
