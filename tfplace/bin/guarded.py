"""Commands in a child process, so that a crash has an exit code.

An untrusted graph can end the process that loads it: a check in TensorFlow's
C++ aborts, stack or memory runs out, or an op exits. No `except` catches that.
So the commands that read such files fork before they import TensorFlow. The
parent forwards signals, waits, and reports a crash of the child in one line.
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from absl import flags

from tfplace.bin import cli, signals

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SI_KERNEL = 128  # Signals from the terminal reach the child, too.
_PR_SET_PDEATHSIG = 1
_REASON = re.compile(
  rb"^F\d{4} .*?\] (.*)$", re.MULTILINE
)  # of TensorFlow's C++
_MOST_BYTES = 1 << 20  # Of held notices.
_notices: list[int] = []  # The file of held notices in the child.


def run(
  name: str, work: Callable[[], int], argv: Sequence[str] | None = None
) -> int:
  """Runs `work` in a child process and exits with its exit code.

  If the child crashes, the exit code is 1, with one line on stderr. If `argv`
  is given, or on systems other than Linux, `work` runs in this process and its
  exit code is returned.
  """
  if argv is not None or sys.platform != "linux":
    return work()
  waited = {*_PASSED_ON, signal.SIGCHLD}
  signals.stop_watching()
  before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
  result, report = os.pipe()
  os.set_blocking(result, False)
  with tempfile.TemporaryFile() as notices:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
      _die_with(parent)
      signals.watch()
      signal.pthread_sigmask(signal.SIG_SETMASK, before)
      _notices.append(os.dup(notices.fileno()))
      code = work()
      sys.stdout.flush()
      os.write(report, bytes([code]))
      return code
    status, signalled = _wait(child, waited)
    code = 1
    reported = _read(result)
    if reported:
      code = reported[0]
    elif signalled and os.waitstatus_to_exitcode(status) == 128 + signalled:
      code = 128 + signalled  # The child has reported it.
    else:
      print(f"{name}: error: {_how(status, notices.fileno())}", file=sys.stderr)
      sys.stderr.flush()
    # Unloading modules would take a while.
    os._exit(code)


def run_command(
  name: str,
  description: str,
  define: Callable[[flags.FlagValues], None],
  main: Callable[[flags.FlagValues], None],
  argv: Sequence[str] | None = None,
) -> int:
  """Runs `cli.run_command` in a child process."""
  return run(
    name, lambda: cli.run_command(name, description, define, main, argv), argv
  )


@contextlib.contextmanager
def holding_notices() -> Iterator[None]:
  """Holds back what C++ writes to stderr, but not Python's output.

  The notices are printed afterwards unless there is an error. If the process
  crashes, its parent finds the reason in them. Does nothing if `run` did not
  fork.
  """
  if not _notices:
    yield
    return
  shown, notices = sys.stderr, _notices[0]
  shown.flush()
  kept = os.dup(2)
  os.dup2(notices, 2)
  sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1, encoding="utf-8")
  try:
    yield
    shown.flush()
    os.write(kept, os.pread(notices, _MOST_BYTES, 0))
  finally:
    sys.stderr.close()
    sys.stderr = shown
    os.dup2(kept, 2)
    os.close(kept)
    os.ftruncate(notices, 0)
    os.lseek(notices, 0, os.SEEK_SET)


def _die_with(parent: int) -> None:
  """Asks the kernel to kill this process when its parent is killed."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(1)


def _wait(child: int, waited: set[signal.Signals]) -> tuple[int, int]:
  """Forwards signals until the child ends.

  Returns:
    The wait status of the child, and the first signal, or 0.
  """
  signalled = 0
  while True:
    info = signal.sigwaitinfo(waited)
    if info.si_signo == signal.SIGCHLD:
      ended, status = os.waitpid(child, os.WNOHANG)
      if ended:
        return status, signalled
      continue
    signalled = signalled or info.si_signo
    if info.si_code != _SI_KERNEL:
      os.kill(child, info.si_signo)


def _read(result: int) -> bytes:
  try:
    return os.read(result, 1)
  except BlockingIOError:  # A descendant holds the other end of the pipe.
    return b""


def _how(status: int, notices: int) -> str:
  """Describes the end of a process that crashed."""
  code = os.waitstatus_to_exitcode(status)
  if code >= 0:
    return f"the process ended with code {code} in the middle of its work"
  name = signal.Signals(-code).name
  text = f"the process was ended by {name} in the middle of its work"
  found = _REASON.search(os.pread(notices, _MOST_BYTES, 0))
  if found:
    reason = " ".join(found[1].decode(errors="replace").split())
    return f"{text}: TensorFlow says {reason[:300]!a}"
  if code == -signal.SIGKILL:
    return f"{text} (the system does so when memory runs out)"
  return text
