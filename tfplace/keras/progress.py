"""Progress of planning in Keras' style."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

import keras
import numpy as np

from tfplace.errors import TfplaceError, shown
from tfplace.graph.argument_checks import whole_number
from tfplace.graph.progress import Progress, silent
from tfplace.plan.stages import ShowStage

_logger = logging.getLogger("tfplace")
LOGGED = -1  # Level of "auto" where nobody watches.
_SILENCE_S = 10.0  # A silent stage is logged after so many seconds.


def check_verbose(verbose: str | int) -> int:
  """Converts the `verbose` argument to 1 (print), 0 (quiet) or -1 (log).

  "auto" becomes 1 on a terminal or in a notebook if Keras' interactive logging
  is on, and -1 otherwise.

  Raises:
    TfplaceError: the value is not "auto", 0, 1 or 2.
  """
  if isinstance(verbose, str) and verbose == "auto":
    is_watched = keras.config.is_interactive_logging_enabled() and (
      sys.stdout.isatty() or hasattr(sys, "ps1") or "ipykernel" in sys.modules
    )
    return 1 if is_watched else LOGGED
  if isinstance(verbose, bool | np.bool_):
    return int(verbose)
  number = whole_number(verbose)
  if number not in (0, 1, 2):
    raise TfplaceError(
      f"verbose is {shown(verbose)}; it must be 'auto', 0 or 1"
    )
  return int(bool(number))


def stage_display(model: str, verbose: int) -> ShowStage:
  """Returns a display that prints each stage, or logs one that takes long."""

  @contextlib.contextmanager
  def show(
    stage: str, detail: str, seconds: float | None
  ) -> Iterator[Progress]:
    text = f"planning model {model!r}: {stage}{detail}"
    level = logging.WARNING if verbose == LOGGED else logging.INFO
    timer = threading.Timer(_SILENCE_S, _logger.log, [level, "%s", text])
    timer.daemon = True
    if verbose == 1:
      print_or_log(text, verbose, level)
    elif seconds is None:
      timer.start()
    try:
      yield silent
    finally:
      timer.cancel()

  return show


def print_or_log(text: str, verbose: int, level: int) -> None:
  """Prints a text if `verbose` is 1, else logs it; 0 logs no warnings."""
  if verbose == 1:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    printable = text.encode(encoding, "backslashreplace").decode(encoding)
    print(printable, flush=True)
  else:
    level = level if verbose else min(level, logging.INFO)
    _logger.log(level, "%s", text)
