"""Progress of planning in Keras' style."""

import contextlib
import html
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfplace.core.argument_checks import whole_number
from tfplace.core.progress import Progress, encodable, silent
from tfplace.errors import TfplaceError, shown

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
    is_interactive = keras.config.is_interactive_logging_enabled()
    return 1 if is_interactive and _is_watched() else LOGGED
  if isinstance(verbose, bool | np.bool_):
    return int(verbose)
  number = whole_number(verbose)
  if number not in (0, 1, 2):
    raise TfplaceError(
      f"verbose is {shown(verbose)}; it must be 'auto', 0 or 1"
    )
  return int(bool(number))


def _is_watched() -> bool:
  return (
    sys.stdout.isatty() or hasattr(sys, "ps1") or "ipykernel" in sys.modules
  )


class StageDisplay:
  """Progress display in Keras' style, on standard output or in a log.

  In a notebook, one line shows the stage and changes in place.
  """

  def __init__(self, model: str, verbose: int) -> None:
    self._model = model
    self._verbose = verbose
    self._line = _notebook_line() if verbose == 1 else None

  @contextlib.contextmanager
  def __call__(
    self, stage: str, detail: str, seconds: float | None
  ) -> Iterator[Progress]:
    """Prints the start of a stage, or logs a stage that takes too long."""
    text = f"planning model {self._model!r}: {stage}{detail}"
    level = logging.WARNING if self._verbose == LOGGED else logging.INFO
    timer = threading.Timer(_SILENCE_S, _logger.log, [level, "%s", text])
    timer.daemon = True
    if self._line is not None:
      self._line.show(f"{text} ...")
    elif self._verbose == 1:
      _print(text)
    elif seconds is None:
      timer.start()
    try:
      yield silent
    finally:
      timer.cancel()

  def finish(self, text: str) -> None:
    """Shows a last text in place of the stages in a notebook, or below them."""
    if self._line is not None:
      self._line.show(text)
    else:
      print_or_log(text, self._verbose, logging.INFO)


class _NotebookLine:
  """Line of a notebook's output that changes in place."""

  def __init__(self, display: Any) -> None:
    self._display = display  # The module `IPython.display`.
    self._handle: Any = None  # None until the first text is shown.

  def show(self, text: str) -> None:
    """Shows a text instead of the one before."""
    data = {
      "text/plain": text,
      "text/html": f"<pre>{html.escape(text)}</pre>",
    }
    if self._handle is None:
      self._handle = self._display.display(data, raw=True, display_id=True)
    else:
      self._handle.update(data, raw=True)


def _notebook_line() -> _NotebookLine | None:
  """Returns a line of the notebook that this process serves, or None."""
  ipython = sys.modules.get("IPython")
  if ipython is None or "ipykernel" not in sys.modules:
    return None
  if getattr(ipython.get_ipython(), "kernel", None) is None:
    return None
  return _NotebookLine(importlib.import_module("IPython.display"))


def _print(text: str) -> None:
  encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
  print(encodable(text, encoding), flush=True)


def print_or_log(text: str, verbose: int, level: int) -> None:
  """Prints a text if `verbose` is 1, else logs it; 0 logs no warnings."""
  if verbose == 1:
    _print(text)
  else:
    level = level if verbose else min(level, logging.INFO)
    _logger.log(level, "%s", text)
