"""Handshake and health check of TensorFlow workers on other hosts.

The handshake tells a worker's TensorFlow version and its host's memory.
TensorFlow's protocol has no call for either. But every server names its devices
with its job, and the job's name is free: a tfplace-worker serves as the job
`tfplace_tf_2_21_0_mib_32000`, and a client that lists its devices reads version
and memory from it. (The harness gives every worker a task of its own cluster
when it opens a session.)

The health check opens an HTTP/2 connection, as gRPC does, and waits for the
server's settings: within a bounded time, and without TensorFlow, a server that
is gone, one that hangs and one that is no gRPC server are told apart.
"""

import dataclasses
import re
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent import futures

from tfplace.measure.remote.hosts_file import Worker

_JOB = re.compile(r"/job:tfplace_tf_(?P<version>\w+)_mib_(?P<mib>\d+)/.*")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Handshake:
  """What a worker's job name tells.

  Attributes:
    version: of its TensorFlow; "2.21.0-rc1" is read as "2.21.0.rc1".
    memory_bytes: of its host.
  """

  version: str
  memory_bytes: float

  @property
  def job(self) -> str:
    """The name of the job that tells this."""
    version = re.sub(r"\W", "_", self.version)
    return f"tfplace_tf_{version}_mib_{int(self.memory_bytes) // _MIB}"

  def has_version(self, version: str) -> bool:
    return self.version == re.sub(r"\W|_", ".", version)


def read_handshake(device_names: Iterable[str]) -> Handshake | None:
  """Version and memory from device names; None of another server."""
  for name in device_names:
    match = _JOB.fullmatch(name)
    if match:
      version = match["version"].replace("_", ".")
      return Handshake(version, float(match["mib"]) * _MIB)
  return None


TIMEOUT_S = 5.0
# RFC 9113, 3.4: the client's preface, and its settings: none.
_SETTINGS = 4
_PREFACE = (
  b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS)) + bytes(5)
)
_FRAME_HEAD = 9


def check(workers: Sequence[Worker], timeout_s: float = TIMEOUT_S) -> list[str]:
  """Asks all workers at once.

  Returns:
    A sentence for each worker that does not answer.
  """
  with futures.ThreadPoolExecutor(max(1, len(workers))) as pool:
    found = pool.map(lambda worker: _problem(worker, timeout_s), workers)
  return [sentence for sentence in found if sentence]


def check_until(workers: Sequence[Worker], deadline: float) -> list[str]:
  """`check`, repeated until all answer or `time.monotonic()` passes."""
  while True:
    found = check(workers)
    if not found or time.monotonic() > deadline:
      return found
    time.sleep(0.2)


def _problem(worker: Worker, timeout_s: float) -> str | None:
  where = (worker.host, worker.port)
  try:
    connected = socket.create_connection(where, timeout_s)
  except (OSError, ValueError) as error:  # ValueError: not a host
    why = "no answer" if isinstance(error, TimeoutError) else None
    why = why or getattr(error, "strerror", None) or str(error)
    return f"{worker} cannot be reached: {why}"
  with connected:
    connected.settimeout(timeout_s)
    try:
      connected.sendall(_PREFACE)
      head = _received(connected, _FRAME_HEAD)
    except TimeoutError:
      return f"{worker} takes connections but says nothing for {timeout_s:g} s"
    except OSError as error:
      return f"{worker} ends connections: {error.strerror or error}"
  if len(head) < _FRAME_HEAD or head[3] != _SETTINGS:
    return f"{worker} does not speak TensorFlow's protocol (gRPC)"
  return None


def _received(connected: socket.socket, size: int) -> bytes:
  """The first `size` bytes, or fewer where the other side hung up."""
  result = b""
  while len(result) < size:
    more = connected.recv(size - len(result))
    if not more:
      break
    result += more
  return result
