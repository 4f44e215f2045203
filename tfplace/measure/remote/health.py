"""What a worker says of itself: its TensorFlow and its host's memory.

TensorFlow's protocol has no question for either. But every server names its
devices with its job, and that name is its owner's to choose: so a
tfplace-worker serves as the job `tfplace_tf_2_21_0_mib_32000`, and whoever
lists its devices reads the version and the memory. (The harness gives every
worker a task of its own cluster when it opens a session.)

Whether TensorFlow workers elsewhere can be reached, within a bounded time.

A server of gRPC greets whoever opens HTTP/2 with it, so that one that is gone,
one that hangs and one that is something else are told apart in a moment, and
without TensorFlow."""

import dataclasses
import re
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent import futures

from tfplace.measure.remote.hosts_file import Worker

_SAYS = re.compile(r"/job:tfplace_tf_(?P<version>\w+)_mib_(?P<mib>\d+)/.*")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Introduction:
  """What a worker says.

  Attributes:
    version: of its TensorFlow; "2.21.0-rc1" is read as "2.21.0.rc1".
    memory_bytes: of its host.
  """

  version: str
  memory_bytes: float

  @property
  def job(self) -> str:
    """The job's name that says this."""
    version = re.sub(r"\W", "_", self.version)
    return f"tfplace_tf_{version}_mib_{int(self.memory_bytes) // _MIB}"

  def has_version(self, version: str) -> bool:
    return self.version == re.sub(r"\W|_", ".", version)


def read(device_names: Iterable[str]) -> Introduction | None:
  """What a worker's devices say of it; None where it is no tfplace-worker."""
  for name in device_names:
    says = _SAYS.fullmatch(name)
    if says:
      version = says["version"].replace("_", ".")
      return Introduction(version, float(says["mib"]) * _MIB)
  return None


TIMEOUT_S = 5.0
# RFC 9113, 3.4: the client's preface, and its settings: none.
_SETTINGS = 4
_HELLO = (
  b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS)) + bytes(5)
)
_FRAME_HEAD = 9


def troubles(
  workers: Sequence[Worker], timeout_s: float = TIMEOUT_S
) -> list[str]:
  """One sentence for each worker that does not answer, all asked at once."""
  with futures.ThreadPoolExecutor(max(1, len(workers))) as pool:
    found = pool.map(lambda worker: _trouble(worker, timeout_s), workers)
  return [sentence for sentence in found if sentence]


def awaited(workers: Sequence[Worker], deadline: float) -> list[str]:
  """The same, asked again until all answer or `time.monotonic()` passes."""
  while True:
    found = troubles(workers)
    if not found or time.monotonic() > deadline:
      return found
    time.sleep(0.2)


def _trouble(worker: Worker, timeout_s: float) -> str | None:
  where = (worker.host, worker.port)
  try:
    connected = socket.create_connection(where, timeout_s)
  except (OSError, ValueError) as error:  # the latter of what is no host
    why = "no answer" if isinstance(error, TimeoutError) else None
    why = why or getattr(error, "strerror", None) or str(error)
    return f"{worker} cannot be reached: {why}"
  with connected:
    connected.settimeout(timeout_s)
    try:
      connected.sendall(_HELLO)
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
