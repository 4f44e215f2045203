"""Tells the stages of planning as they begin, in Keras' manner, and times them.

Lines on standard output for whoever watches; else only a log of what takes
long. It knows nothing of what a stage does.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

import keras

from tfplace.errors import TfplaceError

_logger = logging.getLogger("tfplace")
_SILENCE_S = 10.0


def check_verbose(verbose: str | int) -> int:
  """0 or 1: "auto" is 1 on a terminal and in a notebook, as long as Keras'
  interactive logging is on.

  Raises:
    TfplaceError: something else.
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


class Progress:
  """What planning is at, and what took how long.

  Attributes:
    seconds: stage -> seconds that it took.
  """

  def __init__(self, name: str, verbose: int) -> None:
    """Of the model `name`; prints where `verbose`."""
    self.seconds: dict[str, float] = {}
    self._name = name
    self._verbose = verbose

  @contextlib.contextmanager
  def stage(
    self, stage: str, detail: str = "", is_expected: bool = False
  ) -> Iterator[None]:
    """Tells that a stage begins, and notes what it took.

    Args:
      stage: such as "costs".
      detail: such as ", once per installation".
      is_expected: the caller said how long it may take: no log.
    """
    told = f"planning model {self._name!r}: {stage}{detail}"
    timer = threading.Timer(_SILENCE_S, _logger.warning, ["%s", told])
    timer.daemon = True
    if self._verbose:
      print(told, flush=True)
    elif not is_expected:
      timer.start()
    began = time.monotonic()
    try:
      yield
    finally:
      timer.cancel()
      self.seconds[stage] = time.monotonic() - began

  def __str__(self) -> str:
    """The seconds of all stages but those that took none, in one phrase."""
    whole = sum(self.seconds.values())
    parts = [f"{k} {v:.1f} s" for k, v in self.seconds.items() if v >= 0.1]
    return f"planned in {whole:.1f} s ({', '.join(parts) or 'at once'})"
