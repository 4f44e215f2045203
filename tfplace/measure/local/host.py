"""This host: its memory, its processor, and ports to serve on.

Nothing here imports TensorFlow, which the processes that use it load late or
never.
"""

import errno
import platform
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tfplace.errors import MeasurementError

LOOPBACK = "127.0.0.1"


def memory_bytes() -> float:
  """The host's memory.

  Raises:
    MeasurementError: the kernel does not say.
  """
  try:
    with open("/proc/meminfo", encoding="ascii") as info:
      fields = dict(line.split(":", 1) for line in info)
    return float(fields["MemTotal"].split()[0]) * 1024
  except (OSError, KeyError, ValueError) as error:
    raise MeasurementError(
      f"/proc/meminfo does not say the host's memory: {error}"
    ) from error


def cpu_name() -> str:
  """The processor's name, or at least its architecture."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as info:
      for line in info:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
          return value.strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()


@contextmanager
def reserved(count: int) -> Iterator[list[int]]:
  """Distinct free ports that no other process is given meanwhile.

  Each is bound, not listened on, with SO_REUSEPORT: a worker of the same user
  that asks for the port by number, and for reuse, gets it without a race.
  """
  with ExitStack() as stack:
    ports = []
    for _ in range(count):
      holder = stack.enter_context(socket.socket())
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((LOOPBACK, 0))
      ports.append(holder.getsockname()[1])
    yield ports


@contextmanager
def held(host: str, port: int) -> Iterator[int]:
  """Holds one port of an address that nobody serves on; port 0 is any.

  Raises:
    MeasurementError: the address is not this host's, or the port is taken.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  with socket.socket(family) as probe, socket.socket(family) as holder:
    try:
      # Without SO_REUSEPORT a port that anybody listens on is refused.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind((host, port))
      found = int(probe.getsockname()[1])
      probe.close()
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((host, found))
    except OSError as error:
      why = error.strerror or str(error)
      if error.errno == errno.EADDRNOTAVAIL:
        why = "this host has no such address"
      raise MeasurementError(
        f"nothing can be served on {host} port {port}: {why}"
      ) from error
    yield found
