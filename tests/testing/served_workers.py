"""Real workers of `tfplace-worker`, for the tests of several hosts."""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

START_S = 90.0


class Served:
  """A `tfplace-worker` process, perhaps not up yet."""

  def __init__(self, bind: str):
    self.process = subprocess.Popen(
      [
        *(sys.executable, "-m", "tfplace.bin.worker"),
        *(f"--bind={bind}", "--threads=1"),
      ],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      # A parent that runs in the background ignores it.
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    self.address = ""

  def await_address(self) -> str:
    """Waits until the worker has printed its address, and returns it."""
    line = self.process.stdout.readline()
    assert line.startswith("tfplace-worker: serving on "), (
      line + self.process.stderr.read()
    )
    self.address = line.split()[-1]
    return self.address

  @property
  def port(self) -> int:
    return int(self.address.rpartition(":")[2])

  def server_pid(self) -> int:
    """The process that serves: its only child."""
    (pid,) = children(self.process.pid)
    return pid

  def end(self, number=signal.SIGTERM) -> tuple[int, str, str]:
    """Signals it; its exit code, further output and errors."""
    self.process.send_signal(number)
    out, errors = self.process.communicate(timeout=120)
    return self.process.returncode, out, errors


def children(pid: int) -> list[int]:
  found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
  return [int(child) for child in found.split()]


@contextlib.contextmanager
def serving(binds: Sequence[str]) -> Iterator[list[Served]]:
  """Workers that have come up; gone on exit."""
  with contextlib.ExitStack() as stack:
    workers = []
    for bind in binds:
      worker = Served(bind)
      stack.callback(_gone, worker.process)
      workers.append(worker)
    for worker in workers:
      worker.await_address()
    yield workers


def _gone(process: subprocess.Popen) -> None:
  process.terminate()
  try:
    process.communicate(timeout=120)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()


def write_hosts(
  path: pathlib.Path, addresses: dict[str, str], **kinds: str
) -> str:
  """A hosts file of workers, name -> address and name -> kind; its path."""
  workers = [
    {"name": n, "address": a, "kind": kinds.get(n, "")}
    for n, a in addresses.items()
  ]
  content = {"format": "tfplace.hosts.v1", "name": "lab", "workers": workers}
  path.write_text(json.dumps(content))
  return str(path)


def await_true(check, timeout_s: float = START_S) -> bool:
  deadline = time.monotonic() + timeout_s
  while not check():
    if time.monotonic() > deadline:
      return False
    time.sleep(0.05)
  return True
