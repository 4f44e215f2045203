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

_GRACE_S = 1.5
_STOP = 0  # Ends the thread; no signal has this number.
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHOW_CURSOR = "\x1b[?25h"  # A progress bar hides it.


class Ended(BaseException):
  """Exception that SIGTERM raises."""


class _Watched:
  """State of this process.

  Attributes:
    name: name of the command; "" for another program.
    is_running: whether the command runs; otherwise a signal ends the process.
    received: the first signal, or None.
    has_said: whether the reason of the end was printed.
    stderr: descriptor of standard error; number 2 is redirected at times.
    watcher: thread that ends the process, or None.
  """

  def __init__(self) -> None:
    self.name = ""
    self.is_running = False
    self.received: int | None = None
    self.has_said = False
    self.stderr = 2
    self.watcher: threading.Thread | None = None


_watched = _Watched()
_saying = threading.Lock()


def install_in_command() -> None:
  """Installs handlers of both signals if this process is a command.

  A process that only imports a command (a test, a notebook) keeps its handlers,
  and signals that the parent ignores stay ignored.
  """
  _watched.name = _command()
  if not _watched.name:
    return
  _open_closed()
  with contextlib.suppress(OSError):  # It may be closed.
    _watched.stderr = os.dup(2)
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _handle)
  if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, _handle)
  watch()


def watch() -> None:
  """Starts the thread that ends the process if the main thread is too slow.

  A forked child has only the main thread, so it calls this function again.
  """
  if not _watched.name:
    return
  heard, told = os.pipe()
  os.set_blocking(told, False)
  signal.set_wakeup_fd(told, warn_on_full_buffer=False)
  _watched.watcher = threading.Thread(target=_watch, args=(heard,), daemon=True)
  _watched.watcher.start()


def stop_watching() -> None:
  """Ends the thread, which would take signals that this process awaits."""
  if _watched.watcher is not None:
    told = signal.set_wakeup_fd(-1)
    os.write(told, bytes([_STOP]))
    _watched.watcher.join()
    os.close(told)
    _watched.watcher = None


def _command() -> str:
  """Returns the name of the command that this process runs, or ""."""
  program = os.path.basename(sys.argv[0]) if sys.argv else ""
  if program == "-m":  # Python has not found the module yet.
    program = " ".join(sys.orig_argv)
    found = re.search(r"-m ?tfplace\.bin\.([a-z]+)", program)
  else:
    found = re.fullmatch(r"tfplace-([a-z]+)(\.exe)?", program)
  return f"tfplace-{found[1]}" if found else ""


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
  _watched.is_running = True
  try:
    yield
  finally:
    _watched.is_running = False


def received() -> int | None:
  """Returns the first signal, or None."""
  return _watched.received


def end(name: str, number: int) -> int:
  """Prints why a command ended, and returns its exit code.

  If this process runs the command, it ends here, because threads that still
  compute could take long.
  """
  if number != _watched.received:
    print(f"{name}: {_WORDS[signal.Signals(number)]}", file=sys.stderr)
    return 128 + number
  _say(number)
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  os._exit(128 + number)


def _handle(number: int, frame: FrameType | None) -> None:
  if _watched.received is not None or not _watched.is_running:
    _end_now(number)
  _watched.received = number
  # Python would print an exception that is raised in a finalizer.
  sys.unraisablehook = lambda _: None
  # Threads of libraries would log that connections were closed.
  if "logging" in sys.modules:
    sys.modules["logging"].disable()
  raise KeyboardInterrupt if number == signal.SIGINT else Ended


def _watch(heard: int) -> None:
  while True:
    for number in os.read(heard, 64):
      if number == _STOP:
        os.close(heard)
        return
      # `tfplace-worker` has handlers of its own while it serves.
      if number in _WORDS and signal.getsignal(number) is _handle:
        time.sleep(_GRACE_S)
        _end_now(number)


def _end_now(number: int) -> None:
  for child in _children():
    with contextlib.suppress(OSError):
      os.kill(child, signal.SIGTERM)
  # A partly imported module has written no file.
  staging = sys.modules.get("tfplace.formats.files")
  remove_all = getattr(staging, "remove_all", None)
  if remove_all is not None:
    remove_all()
  _say(number)
  os._exit(128 + number)


def _say(number: int) -> None:
  """Prints the reason once, without `sys.stderr`, which may be locked."""
  if not _saying.acquire(timeout=0.2):
    return
  if not _watched.has_said:
    _watched.has_said = True
    cursor = _SHOW_CURSOR if os.isatty(_watched.stderr) else ""
    line = f"{cursor}{_watched.name}: {_WORDS[signal.Signals(number)]}\n"
    with contextlib.suppress(OSError):
      os.write(_watched.stderr, line.encode())
  _saying.release()


def _children() -> list[int]:
  found = []
  with contextlib.suppress(OSError):
    for entry in filter(str.isdigit, os.listdir("/proc")):
      with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
        parent = file.read().rpartition(")")[2].split()[1]
        if int(parent) == os.getpid():
          found.append(int(entry))
  return found
