"""Progress of planning in Keras' style."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

import keras

from tfplace.core.progress import Progress, silent
from tfplace.errors import TfplaceError

_logger = logging.getLogger("tfplace")
_SILENCE_S = 10.0  # A silent stage is logged after so many seconds.


def check_verbose(verbose: str | int) -> int:
  """Converts the `verbose` argument to 0 or 1.

  "auto" becomes 1 on a terminal or in a notebook if Keras' interactive logging
  is on.

  Raises:
    TfplaceError: the value is not "auto", 0, 1 or 2.
  """
  if verbose == "auto":
    return int(keras.config.is_interactive_logging_enabled() and _is_watched())
  if isinstance(verbose, str) or verbose not in (0, 1, 2):
    raise TfplaceError(f"verbose is {verbose!r:.60}; it must be 'auto', 0 or 1")
  return int(bool(verbose))


def _is_watched() -> bool:
  return (
    sys.stdout.isatty() or hasattr(sys, "ps1") or "ipykernel" in sys.modules
  )


class StageDisplay:
  """Progress display in Keras' style, on standard output or in a log."""

  def __init__(self, model: str, verbose: int) -> None:
    self._model = model
    self._verbose = verbose

  @contextlib.contextmanager
  def __call__(
    self, stage: str, detail: str, seconds: float | None
  ) -> Iterator[Progress]:
    """Prints the start of a stage, or logs a stage that takes too long."""
    text = f"planning model {self._model!r}: {stage}{detail}"
    timer = threading.Timer(_SILENCE_S, _logger.warning, ["%s", text])
    timer.daemon = True
    if self._verbose:
      print(text, flush=True)
    elif seconds is None:
      timer.start()
    try:
      yield silent
    finally:
      timer.cancel()


def print_or_log(text: str, verbose: int, level: int) -> None:
  """Prints a text if `verbose`, else logs it."""
  if verbose:
    print(text, flush=True)
  else:
    _logger.log(level, "%s", text)
