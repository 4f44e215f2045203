"""Flags of the benchmarks, and how a benchmark is started."""

import pathlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from absl import flags

from tfplace.bin import cli

RESULTS = pathlib.Path(__file__).parents[1] / "results"
Main = Callable[[flags.FlagValues], None]


class Options:
  """The flags of one benchmark.

  They are not absl's global flags, so that any two benchmarks can be imported
  by one process.

  Args:
    name: of the benchmark, which errors start with.
    text: what it does, for `--help`.
    *shared: flags that modules of `lib` define.
  """

  def __init__(self, name: str, text: str, *shared: flags.FlagValues) -> None:
    self.values = flags.FlagValues()
    self._name, self._text = name, text
    self._parts = (self.values, *shared)

  def add(self, *arguments: Any, **more: Any) -> flags.FlagHolder:
    """Defines a flag, as `add_flag` does."""
    return add_flag(self.values, *arguments, **more)

  def out(self, file: str) -> flags.FlagHolder:
    """Defines `--out`, by default a file of `benchmarks/results`."""
    return self.add("out", str(RESULTS / file), "JSON file to write.")

  def call(self, main: Main, argv: Sequence[str] | None = None) -> int:
    """Parses flags and runs the benchmark; returns its exit code.

    Args:
      main: takes the values of all flags.
      argv: arguments; those of the process where left out.
    """

    def define(values: flags.FlagValues) -> None:
      for part in self._parts:
        for name in part:
          part[name].unparse()
        values.append_flag_values(part)
        part.mark_as_parsed()

    return cli.run_command(self._name, self._text, define, main, argv)

  def run(self, main: Main) -> None:
    """Ends the process after the benchmark."""
    sys.exit(self.call(main))


def check_names(
  flag: str, names: Iterable[str], known: Collection[str]
) -> None:
  """Checks the names that a flag gives.

  Raises:
    UsageError: one is not known.
  """
  for name in names:
    if name not in known:
      raise cli.UsageError(
        f"--{flag}: unknown {name!r}; choose from {', '.join(known)}"
      )


def add_flag(
  values: flags.FlagValues,
  name: str,
  default: Any,
  text: str,
  least: float | None = None,
  most: float | None = None,
  kind: type | None = None,
  choices: Sequence[str] | None = None,
) -> flags.FlagHolder:
  """Defines a flag.

  Args:
    values: what it is added to.
    name: of the flag.
    default: its value where it is not given.
    text: what it means.
    least: smallest number that is accepted.
    most: largest number that is accepted.
    kind: of its value; that of the default, or str for None, where left out.
    choices: accepted texts, of a flag that takes one of several.
  """
  kind = kind or (str if default is None else type(default))
  if choices is not None:
    return flags.DEFINE_enum(
      name, default, list(choices), text, flag_values=values
    )
  if kind in (int, float):
    define = flags.DEFINE_integer if kind is int else flags.DEFINE_float
    return define(name, default, text, least, most, flag_values=values)
  define = {
    list: flags.DEFINE_list,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
  }[kind]
  return define(name, default, text, flag_values=values)
