"""Two machines on one: network namespaces, joined by a cable.

They need root, `ip` (iproute2) and a kernel with veth. What has no delay of
its own (`tc netem`) gets it from `delaying_wire` over TUN devices.
"""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator

ADDRESSES = ("10.213.70.1", "10.213.70.2")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_WIRE = pathlib.Path(__file__).with_name("delaying_wire.py")


class Unavailable(Exception):
  """Error: one machine cannot act as two; the message says why."""


class TwoMachines:
  """Two namespaces with an address each.

  Args:
    stack: undoes what was done.
  """

  def __init__(self, stack: contextlib.ExitStack):
    self._stack = stack
    tag = f"tfp{os.getpid()}"
    self.names = (f"{tag}a", f"{tag}b")
    self._cable = (f"{tag}v0", f"{tag}v1")
    for name in self.names:
      _ip("netns", "add", name)
      stack.callback(_ip, "netns", "delete", name)
      _ip("-n", name, "link", "set", "lo", "up")
    ends = [
      ["name", end, "netns", name]
      for end, name in zip(self._cable, self.names, strict=True)
    ]
    _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
    for name, end, address in self._ends(self._cable):
      _ip("-n", name, "address", "add", f"{address}/24", "dev", end)
      _ip("-n", name, "link", "set", end, "up")

  def _ends(self, interfaces):
    return zip(self.names, interfaces, ADDRESSES, strict=True)

  def command_prefix(self, machine: int) -> list[str]:
    """Prefix of a command that runs on a machine."""
    return ["ip", "netns", "exec", self.names[machine]]

  @contextlib.contextmanager
  def on(self, machine: int) -> Iterator[None]:
    """Moves this thread, and its children, to a machine."""
    with (
      open("/proc/thread-self/ns/net", "rb") as home,
      open(f"/run/netns/{self.names[machine]}", "rb") as there,
    ):
      _enter(there.fileno())
      try:
        yield
      finally:
        _enter(home.fileno())

  def lengthen(self, delay_s: float) -> str:
    """Makes the cable so long, each way; returns by what means."""
    delay = f"{delay_s * 1e3:g}ms"
    try:
      for name, end, _ in self._ends(self._cable):
        netem = ("root", "netem", "delay", delay, "limit", "100000")
        _run(
          "ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, *netem
        )
      return "netem"
    except Unavailable:
      self._replace_cable(delay_s)
      return "tun"

  def _replace_cable(self, delay_s: float) -> None:
    tuns = tuple(end.replace("v", "t") for end in self._cable)
    files = [_tun(name) for name in tuns]
    for (name, tun, address), old in zip(
      self._ends(tuns), self._cable, strict=True
    ):
      _ip("link", "set", tun, "netns", name)
      _ip("-n", name, "address", "flush", "dev", old)
      _ip("-n", name, "address", "add", f"{address}/24", "dev", tun)
      _ip("-n", name, "link", "set", tun, "mtu", "60000", "up")
    wire = subprocess.Popen(
      [sys.executable, _WIRE, *map(str, files), str(delay_s)], pass_fds=files
    )
    self._stack.callback(wire.wait)
    self._stack.callback(wire.kill)
    for file in files:
      os.close(file)


@contextlib.contextmanager
def two_machines() -> Iterator[TwoMachines]:
  """Raises `Unavailable` where there can be none."""
  if os.geteuid() != 0:
    raise Unavailable("network namespaces need root")
  if not shutil.which("ip"):
    raise Unavailable("`ip` (iproute2) is not installed")
  with contextlib.ExitStack() as stack:
    yield TwoMachines(stack)


def _ip(*arguments: str) -> None:
  _run("ip", *arguments)


def _run(*command: str) -> None:
  try:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
  except OSError as error:
    raise Unavailable(f"{command[0]}: {error.strerror}") from error
  if done.returncode:
    raise Unavailable(f"`{' '.join(command)}`: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
  """`os.setns` of Python 3.12."""
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.setns(namespace, _CLONE_NEWNET):
    code = ctypes.get_errno()
    raise Unavailable(f"setns: {os.strerror(code)}")


def _tun(name: str) -> int:
  """A new TUN device, there while its file is open."""
  try:
    file = os.open("/dev/net/tun", os.O_RDWR)
    request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(file, _TUNSETIFF, request)
  except OSError as error:
    raise Unavailable(f"neither tc netem nor a TUN device: {error}") from error
  return file
