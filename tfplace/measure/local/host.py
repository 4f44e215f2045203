"""Memory, processor, device names and server ports of this host.

TensorFlow's gRPC server listens on every interface, without an option to change
that, and does not authenticate clients. Therefore `keep_on_loopback` ties its
socket to the loopback device after the server has created it and before the
server answers. Linux only. This module does not import TensorFlow.
"""

import contextlib
import errno
import ipaddress
import os
import pathlib
import platform
import re
import socket
from collections.abc import Iterator

from tfplace.errors import MeasurementError, shown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOOPBACK = "127.0.0.1"
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, WSL
_DEVICE = re.compile(r".*/device:(\w+):(\d+)")


def memory_bytes() -> float:
  """Returns the memory of the host in bytes."""
  return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def free_bytes() -> float:
  """Returns the bytes that programs can allocate without swapping."""
  available = _proc_value("meminfo", "MemAvailable")
  return float(available.split()[0]) * 1024.0 if available else memory_bytes()


def cpu_name() -> str:
  """Returns the name of the processor, or its architecture."""
  name = _proc_value("cpuinfo", "model name")
  return name or platform.processor() or platform.machine()


def _proc_value(file: str, wanted: str) -> str:
  """Returns the first value of a key in a file of /proc, or ""."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path("/proc", file).read_text("utf-8").splitlines():
      key, _, value = line.partition(":")
      if key.strip() == wanted:
        return value.strip()
  return ""


def gpu_driver() -> str | None:
  """Returns the file of this host's GPU driver, or None without any."""
  return next((path for path in _DRIVERS if os.path.exists(path)), None)


def why_no_gpu() -> tuple[str, str]:
  """Returns why TensorFlow sees no GPU of this host, and a way out."""
  driver = gpu_driver()
  if driver is None:
    way_out = "choose workers:N for local worker processes"
    return "this host has no GPU, or no driver for it", way_out
  problem = f"TensorFlow sees no GPU, though {driver} says that there is one"
  way_out = "pip install 'tfplace[gpu]', and see that nvidia-smi runs"
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is None:
    return f"{problem}: its CUDA libraries are missing or too old", way_out
  unset = f"unset CUDA_VISIBLE_DEVICES, which is {visible!r}"
  return problem, unset if visible in ("", "-1") else f"{unset}, or {way_out}"


def kind_and_number(device: str) -> tuple[str, int]:
  """Parses ".../device:GPU:1" to ("GPU", 1); other names to ("", 0)."""
  match = _DEVICE.fullmatch(device)
  return (match[1], int(match[2])) if match else ("", 0)


def kind_of(device: str) -> str:
  """Returns the kind in ".../device:GPU:1", "GPU"; "" for other names."""
  return kind_and_number(device)[0]


def gpus_first(device: str) -> tuple[bool, int]:
  """Returns a sort key for GPUs first, since placers prefer first devices."""
  kind, number = kind_and_number(device)
  return kind != "GPU", number


@contextlib.contextmanager
def reserved_port(host: str = LOOPBACK, port: int = 0) -> Iterator[int]:
  """Reserves a free port of an address against other processes.

  The port is bound with SO_REUSEPORT but not listened on. A server of the same
  user that requests the port with reuse gets it without a race.

  Args:
    host: IPv4 or IPv6 address of this host.
    port: number of the port, or 0 for any.

  Raises:
    MeasurementError: the port is in use, or this host lacks the address.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  with socket.socket(family) as holder:
    try:
      if port:  # Without SO_REUSEPORT, binding fails if anyone listens on it.
        with socket.socket(family) as probe:
          probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
          probe.bind((host, port))
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((host, port))
    except OSError as error:
      why = error.strerror or str(error)
      if error.errno == errno.EADDRNOTAVAIL:
        why = "this host has no such address"
      raise MeasurementError(
        f"nothing can be served on {host} port {port}: {why}"
      ) from error
    yield int(holder.getsockname()[1])


def resolve(host: str) -> Address:
  """Resolves a host name; raises MeasurementError if it has no address."""
  try:
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, ValueError) as error:  # ValueError: not a name
    reason = getattr(error, "strerror", None) or "it is not a host's name"
    raise MeasurementError(
      f"host {shown(host)} has no address: {reason}"
    ) from error
  return ipaddress.ip_address(str(addresses[0][4][0]))


def keep_on_loopback(port: int) -> None:
  """Restricts this process's socket on `port` to connections from this host.

  Must be called after the server is created and before it starts.

  Raises:
    MeasurementError: the kernel does not support it (Linux 5.7 does).
  """
  try:
    with _listener(port) as listener:
      listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
  except (OSError, AttributeError) as error:
    raise MeasurementError(
      f"port {port} cannot be tied to loopback: {error}; TensorFlow's server"
      " would be open to every network of this host"
    ) from error


@contextlib.contextmanager
def _listener(port: int) -> Iterator[socket.socket]:
  for entry in os.listdir("/proc/self/fd"):
    try:
      candidate = socket.socket(fileno=os.dup(int(entry)))
    except OSError:  # not a socket, or closed by now
      continue
    with candidate:
      if _listens(candidate, port):
        yield candidate
        return
  raise OSError("no socket of this process listens on it")


def _listens(candidate: socket.socket, port: int) -> bool:
  try:
    return (
      candidate.family in (socket.AF_INET, socket.AF_INET6)
      and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
      and candidate.getsockname()[1] == port
    )
  except OSError:
    return False
