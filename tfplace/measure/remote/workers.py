"""Workers on other hosts: their file, health check and handshake.

    {"format": "tfplace.hosts.v1", "name": "lab",
     "workers": [{"address": "10.0.0.1:2222", "name": "a", "kind": "old"},
                 ...]}

An address is host:port (an IPv6 host in brackets) under which every machine
reaches the worker. The name is used in messages and defaults to the address.
Devices of one kind are assumed to be equally fast, so different machines need
their own kind: "old" makes a worker's devices "CPU-old" and "GPU-old", and each
kind is profiled. The health check awaits gRPC's readiness, in bounded time and
without TensorFlow.
The handshake transmits a worker's TensorFlow version and its host's memory.
TensorFlow's protocol has no call for these, but a server names its devices by
its job, and the job's name is free. tfplace-worker serves the job
`tfplace_tf_2_21_0_mib_32000`, which a client reads from the list of devices. (A
harness's session gives every worker its own task.)
"""

import dataclasses
import re
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent import futures

from tfplace.errors import FormatError, shown
from tfplace.formats import codec, json_file
from tfplace.graph.argument_checks import Text

FORMAT = "tfplace.hosts.v1"
MAX_WORKERS = 256
TIMEOUT_S = 5.0
_JOB = re.compile(r"/job:tfplace_tf_(?P<version>\w+)_mib_(?P<mib>\d+)/.*")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Worker:
  """One worker.

  Attributes:
    address: host:port.
    name: name in messages, or "" for the address.
    kind: distinguishes its machine from others, or "".
  """

  address: str
  name: str = ""
  kind: Text = ""

  @property
  def host(self) -> str:
    """Returns the host of the address, without brackets."""
    return split_address(self.address)[0]

  def __str__(self) -> str:
    if self.name in ("", self.address):
      return f"worker {self.address}"
    return f"worker {self.name!r} at {self.address}"


@dataclasses.dataclass(frozen=True)
class Hosts:
  """Workers of a cluster; the first one also runs the sessions.

  Raises:
    FormatError: there are none or too many, an address is invalid, or an
      address or name is there twice.
  """

  name: str
  workers: tuple[Worker, ...]

  def __post_init__(self) -> None:
    count = len(self.workers)
    if not 1 <= count <= MAX_WORKERS:
      raise FormatError(
        f"cluster {self.name!r} has {count} workers, not from 1 to"
        f" {MAX_WORKERS}"
      )
    seen: set[tuple[str, str]] = set()
    for i, worker in enumerate(self.workers):
      with json_file.errors_naming(f"workers[{i}]: address"):
        split_address(worker.address)
      name = worker.name or worker.address
      for what, value in (("address", worker.address), ("name", name)):
        if (what, value) in seen:
          raise FormatError(
            f"workers[{i}]: {what} {shown(value)} is there twice"
          )
        seen.add((what, value))


def is_hosts_file(path: str) -> bool:
  """Returns whether a file declares this format, even if malformed."""
  if not path.endswith((".json", ".json.gz")):
    return False
  try:
    json_file.read_json(path, FORMAT)
  except FormatError:
    return False
  return True


def load_hosts(path: json_file.Path) -> Hosts:
  """Reads a hosts file; raises FormatError with file, element and value."""
  data = json_file.read_json(path, FORMAT)
  with json_file.errors_naming(path):
    return codec.from_json(Hosts, data, "hosts")


def split_address(address: str, any_port: bool = False) -> tuple[str, int]:
  """Splits "host:port", or raises FormatError; `any_port` allows port 0."""
  host, colon, port = address.rpartition(":")
  bracketed = host.startswith("[") and host.endswith("]")
  bare = host[1:-1] if bracketed else host
  digits = port.isascii() and port.isdigit() and len(port) <= 5
  lowest = 0 if any_port else 1
  if not colon or not bare or not digits or not lowest <= int(port) < 2**16:
    raise FormatError(
      f"{shown(address)} is not of the form host:port, with a port from"
      f" {lowest} to 65535"
    )
  if not bracketed and (":" in bare or not bare.isascii() or " " in bare):
    raise FormatError(
      f"{shown(address)}: {shown(bare)} is no host; an IPv6 address goes in"
      " brackets"
    )
  return bare, int(port)


def check(workers: Sequence[Worker], timeout_s: float = TIMEOUT_S) -> list[str]:
  """Queries all workers at once; returns a sentence per failed worker."""
  with futures.ThreadPoolExecutor(max(1, len(workers))) as pool:
    problems = pool.map(lambda worker: _problem(worker, timeout_s), workers)
  return [sentence for sentence in problems if sentence]


def check_until(workers: Sequence[Worker], deadline: float) -> list[str]:
  """Repeats `check` until all workers answer, or until a deadline."""
  while True:
    problems = check(workers)
    if not problems or time.monotonic() > deadline:
      return problems
    time.sleep(0.2)


def _problem(worker: Worker, timeout_s: float) -> str | None:
  import grpc

  where = split_address(worker.address)
  try:  # gRPC itself would repeat a refused connection until the timeout.
    socket.create_connection(where, timeout_s).close()
    with grpc.insecure_channel(worker.address) as channel:
      grpc.channel_ready_future(channel).result(timeout_s)
  except grpc.FutureTimeoutError:
    return (
      f"{worker} takes connections but does not answer as a TensorFlow server"
      f" (gRPC) within {timeout_s:g} s"
    )
  except (OSError, ValueError) as error:  # ValueError: not a host
    why = "no answer" if isinstance(error, TimeoutError) else None
    why = why or getattr(error, "strerror", None) or str(error)
    return f"{worker} cannot be reached: {why}"
  return None


@dataclasses.dataclass(frozen=True)
class Handshake:
  """Content of a worker's job name.

  Attributes:
    version: version of its TensorFlow; "2.21.0-rc1" is read as "2.21.0.rc1".
    memory_bytes: memory of its host.
  """

  version: str
  memory_bytes: float

  @property
  def job(self) -> str:
    """Returns the job name that encodes this content."""
    version = re.sub(r"\W", "_", self.version)
    return f"tfplace_tf_{version}_mib_{int(self.memory_bytes) // _MIB}"

  def has_version(self, version: str) -> bool:
    return self.version == re.sub(r"\W|_", ".", version)


def read_handshake(device_names: Iterable[str]) -> Handshake | None:
  """Reads the handshake in device names; None for other programs' servers."""
  for name in device_names:
    match = _JOB.fullmatch(name)
    if match:
      version = match["version"].replace("_", ".")
      return Handshake(version, float(match["mib"]) * _MIB)
  return None
