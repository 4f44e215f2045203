"""Runs a command in a child process, so that its death has an exit code.

An untrusted graph can end the process that loads it: by a check in TensorFlow's
C++ that aborts, by running out of stack or memory, or by an op that exits. No
`except` sees that. So the commands that take such files fork before TensorFlow
is imported. The parent passes signals on, waits, and where the child ended
without saying how the command went, says so in one line.
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
_SI_KERNEL = 128  # of a signal from the terminal, which the child got, too
_PR_SET_PDEATHSIG = 1
_REASON = re.compile(
  rb"^F\d{4} .*?\] (.*)$", re.MULTILINE
)  # of TensorFlow's C++
_MOST_BYTES = 1 << 20  # of held notices
_notices: list[int] = []  # the file that holds them, in a guarded child


def run(
  name: str, work: Callable[[], int], argv: Sequence[str] | None = None
) -> int:
  """Runs `work` in a child process; the parent exits with what it returns.

  Where the child ends without returning, that is 1, with one line on stderr.
  Where a caller gave `argv`, and on other systems than Linux, `work` runs in
  this process and its exit code is returned.
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
      code = 128 + signalled  # the child has said so
    else:
      print(f"{name}: error: {_how(status, notices.fileno())}", file=sys.stderr)
      sys.stderr.flush()
    # Nothing is this process's own, and to unload its modules takes a while.
    os._exit(code)


def run_command(
  name: str,
  description: str,
  define: Callable[[flags.FlagValues], None],
  main: Callable[[flags.FlagValues], None],
  argv: Sequence[str] | None = None,
) -> int:
  """As `cli.run_command`, in a child process."""
  return run(
    name, lambda: cli.run_command(name, description, define, main, argv), argv
  )


@contextlib.contextmanager
def holding_notices() -> Iterator[None]:
  """Holds back what C++ writes to stderr; Python's own output is shown.

  It is shown afterwards, unless there is an error; if the process dies, its
  parent takes the reason from it. Does nothing where `run` did not fork.
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
  """Has the kernel kill this process when its parent is killed."""
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(1)


def _wait(child: int, waited: set[signal.Signals]) -> tuple[int, int]:
  """Passes signals on until the child ends.

  Returns:
    Its wait status, and the first signal that came, or 0.
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
  except BlockingIOError:  # a process of the child's holds the other end
    return b""


def _how(status: int, notices: int) -> str:
  """One sentence on how a process ended that did not say so itself."""
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
