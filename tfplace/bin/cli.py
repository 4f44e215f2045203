"""Flag parsing, help, errors, progress and exit codes of all commands.

Each command has its own `FlagValues`, so that several can run in one process;
there are no global flags.
"""

import contextlib
import glob
import importlib
import io
import math
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from rich import console, progress

from tfplace.bin import signals
from tfplace.errors import TfplaceError, shown
from tfplace.formats import files
from tfplace.graph.progress import Progress, silent

_SECONDS_PER_LINE = 5.0
_IN_LINES = ("profiling", "measuring")  # They take minutes and are logged.


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ADDRESSES = frozenset({"dask"})  # Flags whose value may be an address.
_MOST_CHARACTERS = 2000  # Length of an error message.
_HELP = frozenset({"--help", "-h", "--helpfull", "--helpshort"})


class UsageError(TfplaceError):
  """Error of invalid flags or combinations of flags."""


def command(
  about: str,
  define: Callable[[flags.FlagValues], None],
  main: Callable[[flags.FlagValues], None],
) -> Callable[..., int]:
  """Returns the console script of a module.

  It takes arguments without the program's name, by default those of the
  process, and reports an error in one line on stderr. It returns an exit code:
  0 for success, 1 for an error, 130 if interrupted, 143 if terminated.

  Args:
    about: docstring of the module: the name, a colon, and the description.
    define: defines the flags.
    main: the command; raises `TfplaceError` for errors of the user.
  """
  name, _, description = about.partition(": ")

  def run(argv: Sequence[str] | None = None) -> int:
    values = flags.FlagValues()
    define(values)
    flags.DEFINE_bool(
      "debug", False, "Show the traceback of an error.", flag_values=values
    )
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # A notebook's is not.
      sys.stdout.reconfigure(errors="backslashreplace")
    try:
      if _HELP.isdisjoint(arguments):
        _parse([name, *arguments], values)
        with signals.raising():
          main(values)
      else:
        print(_help_text(name, description, values))
      sys.stdout.flush()
    except (KeyboardInterrupt, signals.Ended):
      return signals.end(name, signals.received() or signal.SIGINT)
    except Exception as error:
      number = signals.received()
      if number is not None:  # A signal may surface as another error.
        return signals.end(name, number)
      if "--debug" in arguments:
        traceback.print_exc()
      print(f"{name}: error: {_one_line(error)}", file=sys.stderr)
      _drop_unwritten()
      return 1
    return 0

  return run


def define(
  values: flags.FlagValues,
  name: str,
  text: str,
  default: Any = None,
  *,
  kind: type = str,
  least: float | None = None,
  choices: Sequence[str] = (),
) -> None:
  """Defines a flag of the type of its default.

  Args:
    values: the flags of a command.
    name: name of the flag.
    text: its help.
    default: its default.
    kind: type of a flag whose default is None.
    least: least value of a number.
    choices: all values of a text, or () for any.
  """
  kind = kind if default is None else type(default)
  options: dict[str, Any] = {"flag_values": values}
  if choices:
    flags.DEFINE_enum(name, default, list(choices), text, **options)
    return
  if kind in (int, float):
    options["lower_bound"] = least
  defines: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    list: flags.DEFINE_list,
    str: flags.DEFINE_string,
  }
  defines[kind](name, default, text, **options)


def define_all(
  values: flags.FlagValues, texts: Mapping[str, str], default: Any = None
) -> None:
  """Defines flags of one default, such as [] or False, by name and help."""
  for name, text in texts.items():
    define(values, name, text, default)


def define_json(values: flags.FlagValues, what: str) -> None:
  """Defines `--json`."""
  define(values, "json", f"Print the {what} as JSON in the last line.", False)


def _parse(arguments: list[str], values: flags.FlagValues) -> None:
  """Parses flags; raises `TfplaceError` or `flags.Error` for invalid ones."""
  rest = values(arguments)[1:]
  _check_values(values)
  if rest:
    raise UsageError(f"unexpected argument {rest[0]!r}")
  _check_outputs(values)


def _check_values(values: flags.FlagValues) -> None:
  """Rejects values that no flag may have.

  These are addresses of files, which TensorFlow would open by itself, and
  "nan", which passes the bounds of every flag.
  """
  for flag in sorted(set(values) - _ADDRESSES):
    value = values[flag].value
    if isinstance(value, float) and math.isnan(value):
      raise UsageError(f"--{flag}={value} is not a number")
    for text in value if isinstance(value, list | tuple) else [value]:
      if isinstance(text, str) and _ADDRESS.match(text):
        raise UsageError(
          f"--{flag}={text[:200]!a} is an address; only files of this machine"
          " are read and written, so copy it here first"
        )


# Flags that name what a command reads or writes.
_INPUTS = (
  *("graph", "graph_def", "saved_model", "keras_model", "sample", "cluster"),
  *("placement", "init_placement", "policy", "init_from", "graphs"),
  "models",
)
_WRITTEN = (  # They are written at the end.
  *("output", "output_graph_def", "output_saved_model"),
  *("trace", "timeline", "report"),
)
_OUTPUTS = (*_WRITTEN, "export_dir", "checkpoint_dir")


def _check_outputs(values: flags.FlagValues) -> None:
  """Rejects outputs that would overwrite an input or another output."""
  used: dict[str, str] = {}  # Real path -> flag.
  for flag in (*_INPUTS, *_OUTPUTS):
    value = values[flag].value if flag in values else None
    paths = value if isinstance(value, list) else [value or ""]
    for path in [p for text in paths for p in glob.glob(text) or [text]]:
      is_stored = os.path.isdir(path) or os.path.isfile(path)
      if not os.path.exists(path):
        is_stored = bool(path) and flag in _OUTPUTS
      place = os.path.realpath(path)
      if is_stored and flag in _OUTPUTS and place in used:
        raise UsageError(
          f"--{flag}={shown(path)} names the same place as --{used[place]},"
          " which would be overwritten; give another path"
        )
      if is_stored:
        used[place] = flag


def _drop_unwritten() -> None:
  """Drops output that cannot be written; Python would try again as it ends."""
  try:
    sys.stdout.flush()
  except OSError:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _one_line(error: Exception) -> str:
  text = " ".join(str(error).split()) or type(error).__name__
  if len(text) > _MOST_CHARACTERS:
    text = f"{text[: _MOST_CHARACTERS - 100]} ... {text[-95:]}"
  if isinstance(error, TfplaceError | flags.Error):
    return text
  return f"{type(error).__name__}: {text} (--debug shows where)"


def _help_text(name: str, description: str, values: flags.FlagValues) -> str:
  lines = [f"usage: {name} [--flag=value ...]", "", description, "", "flags:"]
  for flag in sorted(set(values)):
    info = values[flag]
    kind = f"--[no]{flag}" if info.boolean else f"--{flag}=..."
    lines.append(f"  {kind}")
    lines.append(f"      {info.help} (default: {info.default_as_str})")
  return "\n".join(lines)


def open_console() -> console.Console:
  """Opens standard output for Rich, with a fixed width for logs."""
  screen = console.Console()
  if not screen.is_terminal:
    screen.width = 120
  return screen


def required(values: flags.FlagValues, flag: str) -> str:
  """Returns the value of a required flag.

  Raises:
    UsageError: the flag is missing.
  """
  value = values[flag].value
  if not value:
    raise UsageError(f"--{flag} is missing")
  return str(value)


def is_count(text: str) -> bool:
  """Returns whether a text is a whole number of at least 0 in 64 bits."""
  return text.isdecimal() and len(text) <= 18


def check_writable(values: flags.FlagValues) -> None:
  """Checks that all outputs can be written, before any work is done.

  Raises:
    FormatError: an output cannot be written.
  """
  for flag in _WRITTEN:
    path = values[flag].value if flag in values else None
    if path:
      files.check_writable(path)


@contextlib.contextmanager
def showing_progress(what: str, in_lines: bool = False) -> Iterator[Progress]:
  """Shows the stage of the work and its time on stderr while it lasts.

  If stderr is not a terminal, `in_lines` prints a line every few seconds
  instead. Yields a callback for the start of each stage.
  """
  screen = console.Console(stderr=True)
  if not screen.is_terminal:
    yield _printing_lines(what) if in_lines else silent
    return
  with progress.Progress(
    progress.SpinnerColumn(),
    progress.TextColumn("{task.description}", markup=False),
    progress.TimeElapsedColumn(),
    console=screen,
    transient=True,
  ) as line:
    task = line.add_task(what)
    yield lambda stage: line.update(task, description=f"{what}: {stage}")


def _printing_lines(work: str) -> Progress:
  """Returns a display that prints a line to stderr every few seconds."""
  printed_s = time.monotonic()

  def show(stage: str) -> None:
    nonlocal printed_s
    if time.monotonic() > printed_s + _SECONDS_PER_LINE:
      printed_s = time.monotonic()
      print(f"{work}: {stage}", file=sys.stderr, flush=True)

  return show


def show_stage(
  stage: str, detail: str, unused_seconds: float | None
) -> contextlib.AbstractContextManager[Progress]:
  """Shows the progress of a stage; a `ShowStage` of `plan.stages`."""
  what = f"{stage[0].upper()}{stage[1:]}{detail}"
  return showing_progress(what, stage in _IN_LINES)


def load_tensorflow() -> None:
  """Imports TensorFlow without its start-up notices on stderr.

  C++ prints them before it reads any setting, so this function redirects the
  file descriptor. If the import fails, it prints the notices.
  """
  if "tensorflow" in sys.modules:
    return
  files.check_temporary_folder()  # TensorFlow needs it, too.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  sys.stderr.flush()
  kept = os.dup(2)
  with tempfile.TemporaryFile() as notices:
    os.dup2(notices.fileno(), 2)
    try:
      tensorflow = importlib.import_module("tensorflow")
      tensorflow.config.list_physical_devices()
    except Exception:
      notices.seek(0)
      os.write(kept, notices.read())
      raise
    finally:
      os.dup2(kept, 2)
      os.close(kept)
