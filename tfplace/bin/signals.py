"""Prompt end of a command after Ctrl-C or SIGTERM, with one line.

A signal raises an exception in the main thread, so that everything is cleaned
up. If that takes too long, a thread removes incomplete files and ends the
process. This module is imported first and imports next to nothing.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_GRACE_S = 1.5
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHOW_CURSOR = "\x1b[?25h"  # A progress bar hides it.


class Ended(BaseException):
  """Exception that SIGTERM raises."""


class _State:
  """State of this process.

  Attributes:
    name: name of the command; "" for another program.
    is_running: whether the command runs; otherwise a signal ends the process.
    received: the first signal, or None.
    stderr: descriptor of standard error; number 2 is redirected at times.
    saying: held by the thread that has printed the reason of the end.
  """

  name = ""
  is_running = False
  received: int | None = None
  stderr = 2
  saying = threading.Lock()


def install_in_command() -> None:
  """Installs handlers of both signals if this process is a command.

  A process that only imports a command (a test, a notebook) keeps its handlers,
  and signals that the parent ignores stay ignored.
  """
  program = os.path.basename(sys.argv[0]) if sys.argv else ""
  if program == "-m":  # Python has not found the module yet.
    match = re.search(r"-m ?tfplace\.bin\.([a-z]+)", " ".join(sys.orig_argv))
  else:
    match = re.fullmatch(r"tfplace-([a-z]+)(\.exe)?", program)
  if not match:
    return
  _State.name = f"tfplace-{match[1]}"
  _open_closed()
  with contextlib.suppress(OSError):  # It may be closed.
    _State.stderr = os.dup(2)
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _handle)
  if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, _handle)
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def _open_closed() -> None:
  """Opens the null device in place of closed standard streams.

  Otherwise the next opened file, such as an output, gets their number, and C++
  or a child process prints into it.
  """
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      number = os.open(os.devnull, os.O_RDWR)  # The lowest free number.
      os.set_inheritable(number, True)
      setattr(sys, name, os.fdopen(number, mode))


@contextlib.contextmanager
def raising() -> Iterator[None]:
  """Makes signals raise `KeyboardInterrupt` or `Ended` in the main thread."""
  _State.is_running = True
  try:
    yield
  finally:
    _State.is_running = False


def received() -> int | None:
  """Returns the first signal, or None."""
  return _State.received


def end(name: str, number: int) -> int:
  """Prints why a command ended, and returns its exit code.

  If this process runs the command, it ends here, because threads that still
  compute could take long.
  """
  if number != _State.received:
    print(f"{name}: {_WORDS[signal.Signals(number)]}", file=sys.stderr)
    return 128 + number
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  _exit(number)


def _handle(number: int, frame: FrameType | None) -> None:
  if _State.received is not None or not _State.is_running:
    _end_now(number)
  _State.received = number
  # Python would print an exception that is raised in a finalizer.
  sys.unraisablehook = lambda _: None
  # Threads of libraries would log that connections were closed.
  if "logging" in sys.modules:
    sys.modules["logging"].disable()
  raise KeyboardInterrupt if number == signal.SIGINT else Ended


def _watch(reader: int) -> None:
  while True:
    for number in os.read(reader, 64):
      if number in _WORDS and signal.getsignal(number) is _handle:
        time.sleep(_GRACE_S)
        _end_now(number)


def _end_now(number: int) -> NoReturn:
  for child in _children():
    with contextlib.suppress(OSError):
      os.kill(child, signal.SIGTERM)
  # A partly imported module has written no file.
  staging = sys.modules.get("tfplace.formats.files")
  remove_all = getattr(staging, "remove_all", None)
  if remove_all is not None:
    remove_all()
  _exit(number)


def _exit(number: int) -> NoReturn:
  """Prints the reason once, without `sys.stderr`, which may be locked."""
  if _State.saying.acquire(blocking=False):
    cursor = _SHOW_CURSOR if os.isatty(_State.stderr) else ""
    line = f"{cursor}{_State.name}: {_WORDS[signal.Signals(number)]}\n"
    with contextlib.suppress(OSError):
      os.write(_State.stderr, line.encode())
  os._exit(128 + number)


def _children() -> list[int]:
  result = []
  with contextlib.suppress(OSError):
    for entry in filter(str.isdigit, os.listdir("/proc")):
      with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
        parent = file.read().rpartition(")")[2].split()[1]
        if int(parent) == os.getpid():
          result.append(int(entry))
  return result
