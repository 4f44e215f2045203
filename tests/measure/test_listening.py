"""A listening socket takes connections of this host only."""

import contextlib
import socket

import pytest

from tfplace.errors import MeasurementError
from tfplace.measure.local import host as host_lib

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def like_tensorflow():
  """A socket on every address, of IPv6 and IPv4, as gRPC opens it."""
  with socket.socket(socket.AF_INET6) as found:
    found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    found.bind(("::", 0))
    found.listen()
    yield found, found.getsockname()[1]


def test_a_socket_is_tied_to_the_loopback_device():
  with like_tensorflow() as (found, port):
    host_lib.keep_on_loopback(port)
    name = found.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    with socket.create_connection((LOOPBACK, port), timeout=5):
      pass
  assert name.rstrip(b"\0") == b"lo"


def test_a_port_of_nobody_is_an_error():
  with socket.socket() as bound:  # it does not listen
    bound.bind((LOOPBACK, 0))
    port = bound.getsockname()[1]
    with pytest.raises(MeasurementError, match=f"{port} cannot be tied"):
      host_lib.keep_on_loopback(port)


def test_a_name_without_an_address_is_an_error():
  with pytest.raises(MeasurementError, match=r"'no\.such\.invalid'"):
    host_lib.resolve("no.such.invalid")
