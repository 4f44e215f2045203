"""Child processes that measure: started, read from, and always ended.

A child can die, hang inside TensorFlow, or be killed; the parent never waits
on it without a deadline, and `kill` always works.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import IO, Any

import tfplace
from tfplace.errors import MeasurementError
from tfplace.measure.session import messages

_LOG_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log|.*failed call to cuInit")
_KEEP_MEMORY = {  # of glibc
  "MALLOC_ARENA_MAX": "1",
  "MALLOC_MMAP_MAX_": "0",
  "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
_REAP_S = 10.0
_DEATH_GRACE_S = 2.0  # a dead worker shows a moment after its peers complain


class ChildError(MeasurementError):
  """A measuring process failed.

  Attributes:
    kind: "died", "hung", "out_of_memory", "address_in_use", "failed", "lost",
      "non_finite" or "not_started".
  """

  def __init__(self, kind: str, message: str, **about: Any) -> None:
    super().__init__(message, **about)
    self.kind = kind


class Child:
  """One measuring process and the socket to it.

  Args:
    name: what errors call it.
    config: its runtime.
  """

  def __init__(self, name: str, config: messages.ChildConfig) -> None:
    self.name = name
    self.stage = "starting"
    self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`kill` closes it)
    ours, theirs = socket.socketpair()
    with theirs:
      self._process = subprocess.Popen(
        [
          sys.executable,
          "-m",
          "tfplace.measure.session.worker",
          str(theirs.fileno()),
        ],
        stdin=subprocess.PIPE,  # its end ends the child: see worker.py
        stdout=self._log,
        stderr=self._log,
        pass_fds=[theirs.fileno()],
        env=_environment(config),
      )
    self.connection: connection.Connection = connection.Connection(
      ours.detach()
    )
    with contextlib.suppress(OSError):  # it may have died: `receive` tells
      self.connection.send(config)

  @property
  def pid(self) -> int:
    return self._process.pid

  def kill(self) -> None:
    """Ends the process, stopped or stuck as it may be, and reaps it."""
    with contextlib.suppress(OSError):  # its group, once it has made one
      os.killpg(self.pid, signal.SIGKILL)
    self._process.kill()
    # A process that the kernel itself holds is reaped when that lets go.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_REAP_S)
    if self._process.stdin:
      self._process.stdin.close()
    self.connection.close()
    self._log.close()

  def death(self) -> str | None:
    """How the process died, or None while it lives."""
    code = self._process.poll()
    if code is None:
      return None
    if code < 0:
      how = f"was killed by {signal.Signals(-code).name}"
    else:
      how = f"exited with code {code}"
    tail = self.log_tail()
    return how + (f"; its log ends: {tail}" if tail else "")

  def is_stopped(self) -> bool:
    """Whether the kernel holds the process stopped (SIGSTOP)."""
    with contextlib.suppress(OSError):
      stat = pathlib.Path(f"/proc/{self.pid}/stat").read_text("ascii", "ignore")
      return stat.rpartition(")")[2].split()[0] in "Tt"
    return False

  def log_tail(self, max_chars: int = 300) -> str:
    """The end of its output, TensorFlow's routine messages left out."""
    end = self._log.seek(0, os.SEEK_END)
    self._log.seek(max(0, end - 64 * max_chars))
    lines = self._log.read().decode("utf-8", "replace").splitlines()
    told = [line for line in lines if not _LOG_NOISE.match(line)]
    return " ".join(" ".join(told).split())[-max_chars:]


def receive(
  sender: Child, watched: Sequence[Child], timeout_s: float, doing: str
) -> Any:
  """The next answer of `sender`, while all of `watched` live.

  Raises:
    ChildError: one died, `sender` reported a failure, or the time ran out.
  """
  deadline = time.monotonic() + timeout_s
  while True:
    left = deadline - time.monotonic()
    ready = connection.wait([c.connection for c in watched], max(0.0, left))
    if not ready:
      raise _hung(sender, watched, timeout_s, doing)
    for child in watched:
      if child is not sender and child.connection in ready:
        raise _died([child, *watched], doing)  # they send nothing unasked
    try:
      answer = sender.connection.recv()
    except (EOFError, OSError):
      raise _died([sender, *watched], doing) from None
    if isinstance(answer, messages.Stage):
      sender.stage = answer.name
    elif isinstance(answer, messages.Failure):
      raise _failed(sender, watched, answer, doing)
    else:
      return answer


def _failed(
  sender: Child,
  watched: Sequence[Child],
  failure: messages.Failure,
  doing: str,
) -> ChildError:
  """A failure, or the death of another process that caused it."""
  if failure.kind in ("failed", "lost") and len(watched) > 1:
    for child in watched:
      others = child is not sender
      if others and child.connection.poll(0.2):
        return _died([child, *watched], doing)
  return ChildError(
    failure.kind,
    f"{doing}: {_KINDS[failure.kind]} in {sender.stage}: {failure.message}",
  )


_KINDS = {
  "failed": "failed",
  "lost": "lost a worker",
  "out_of_memory": "out of memory",
  "address_in_use": "the port is in use",
}


def _died(children: Sequence[Child], doing: str) -> ChildError:
  deadline = time.monotonic() + _DEATH_GRACE_S
  while time.monotonic() < deadline:
    for child in children:
      how = child.death()
      if how is not None:
        kind = "out_of_memory" if "bad_alloc" in how else "died"
        return ChildError(kind, f"{doing}: {child.name} {how}")
    time.sleep(0.01)
  return ChildError(
    "died", f"{doing}: {children[0].name} closed its connection"
  )


def _hung(
  sender: Child, watched: Sequence[Child], timeout_s: float, doing: str
) -> ChildError:
  stopped = [c.name for c in watched if c.is_stopped()]
  why = f"; {' and '.join(stopped)} is stopped" if stopped else ""
  return ChildError(
    "hung", f"{doing}: no answer within {timeout_s:g} s, in {sender.stage}{why}"
  )


def _environment(config: messages.ChildConfig) -> dict[str, str]:
  """The parent's environment with the config's threads and this package.

  oneDNN is off unless it is asked for: its layout pass, which runs after the
  placer and has no other switch, fuses ops (Conv2D with BiasAdd, gradients
  with theirs), and what is timed would not be the graph that was placed.
  Freed memory is kept, as devices with a pool of their own do: buffers of tens
  of megabytes that go back to the kernel are zeroed page by page at their next
  use, in some steps and not in others, which doubled the time of a convolution.
  Under a memory limit it goes back, or what was kept would count.
  """
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  path = os.environ.get("PYTHONPATH")
  result = {
    **os.environ,
    **(_KEEP_MEMORY if config.memory_limit_bytes is None else {}),
    "PYTHONPATH": package + (os.pathsep + path if path else ""),
    "TF_ENABLE_ONEDNN_OPTS": "1" if config.onednn else "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_GRPC_REUSE_PORT": "true",  # the parent holds the port: see host.py
    "PYTHONUNBUFFERED": "1",
  }
  if not config.gpus:
    result["CUDA_VISIBLE_DEVICES"] = "-1"
  if config.op_threads:
    threads = str(config.op_threads)
    result |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
  return result
