"""Restricts TensorFlow's server to one address of the host.

TensorFlow's gRPC server listens on every interface and has no option for it;
nor does it authenticate clients. So the socket is restricted after the
server has made it and before the server answers: to the loopback device, and
by a socket filter (classic BPF, as in socket(7)) that drops every packet whose
destination is another address, the first of a connection included. Linux only.
"""

import contextlib
import ctypes
import ipaddress
import os
import pathlib
import socket
import struct
from collections.abc import Iterator

from tfplace.errors import MeasurementError, shown

_SO_ATTACH_FILTER = 26  # of Linux, on the architectures of TensorFlow's wheels
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from there on
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = (
  0x30,
  0x20,
  0x54,
  0x15,
  6,
)
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_ESTABLISHED = "01"  # in /proc/net/tcp

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def resolve(host: str) -> Address:
  """The address that a host's name stands for, its first.

  Raises:
    MeasurementError: it has none.
  """
  try:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, ValueError) as error:  # ValueError: not a name
    reason = getattr(error, "strerror", None) or "it is not a host's name"
    raise MeasurementError(
      f"host {shown(host)} has no address: {reason}"
    ) from error
  return ipaddress.ip_address(str(found[0][4][0]))


def restrict(port: int, address: Address) -> None:
  """Lets this process's socket on `port` take connections to `address` only.

  Call it between the making of a server and its start. The unspecified
  address (0.0.0.0 or ::) leaves the socket as it is.

  Raises:
    MeasurementError: the kernel does not offer it, or a client has
      connected already.
  """
  if address.is_unspecified:
    return
  try:
    with _listening(port) as found:
      if address.is_loopback:  # seen by `ss`, and needs Linux 5.7
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
      _attach(found, _only_to(address))
  except (OSError, AttributeError) as error:
    raise MeasurementError(
      f"port {port} cannot be tied to {address}: {error}; TensorFlow's server"
      " would be open to every network of this host"
    ) from error
  _refuse_early_connections(port, address)


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
  """The listening socket on `port`, found among this process's files."""
  for entry in os.listdir("/proc/self/fd"):
    try:
      found = socket.socket(fileno=os.dup(int(entry)))
    except OSError:  # no socket, or closed meanwhile
      continue
    with found:
      if _listens(found, port):
        yield found
        return
  raise OSError("no socket of this process listens on it")


def _listens(found: socket.socket, port: int) -> bool:
  try:
    return (
      found.family in (socket.AF_INET, socket.AF_INET6)
      and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
      and found.getsockname()[1] == port
    )
  except OSError:
    return False


def _only_to(address: Address) -> list[tuple[int, int, int, int]]:
  """A filter program: keeps packets with this destination, drops others.

  An instruction is (code, jump if true, jump if false, value).
  """
  words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
  destination = 16 if address.version == 4 else 24  # in the header, bytes
  program = [
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
    (_AND, 0, 0, 0xF0),
    (_JUMP_IF_EQUAL, 0, 2 * len(words) + 1, address.version << 4),
  ]
  for i, word in enumerate(words):
    left = 2 * (len(words) - 1 - i) + 1
    program += [
      (_LOAD_WORD, 0, 0, _NETWORK_HEADER + destination + 4 * i),
      (_JUMP_IF_EQUAL, 0, left, word),
    ]
  return [*program, (_RETURN, 0, 0, _ACCEPT), (_RETURN, 0, 0, _DROP)]


def _attach(
  found: socket.socket, program: list[tuple[int, int, int, int]]
) -> None:
  code = b"".join(struct.pack("HBBI", *line) for line in program)
  held = ctypes.create_string_buffer(code)
  pointer = struct.pack("HP", len(program), ctypes.addressof(held))
  found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _refuse_early_connections(port: int, address: Address) -> None:
  """Fails where a client has connected to another address of the port.

  The socket was open for a moment; what connected then would be served.
  """
  for local, remote in _connections(port):
    if local != address:
      raise MeasurementError(
        f"{remote} connected to port {port} at {local}, not {address}, while"
        " the server was being made; start it again"
      )


def _connections(port: int) -> Iterator[tuple[Address, Address]]:
  """(local, remote) addresses of the connections to a local port."""
  for table in ("tcp", "tcp6"):
    path = pathlib.Path("/proc/self/net") / table
    if not path.exists():  # a kernel without IPv6
      continue
    for line in path.read_text("ascii").splitlines()[1:]:
      _, local, remote, state, *_ = line.split()
      number, at = local.split(":")
      if state == _ESTABLISHED and int(at, 16) == port:
        yield _parsed(number), _parsed(remote.split(":")[0])


def _parsed(number: str) -> Address:
  """An address as the kernel prints it: words in the host's byte order."""
  words = [int(number[i : i + 8], 16) for i in range(0, len(number), 8)]
  packed = b"".join(struct.pack("=I", word) for word in words)
  address = ipaddress.ip_address(packed)
  if isinstance(address, ipaddress.IPv6Address):
    return address.ipv4_mapped or address
  return address
