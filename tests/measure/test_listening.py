"""A listening socket takes connections to one address only."""

import contextlib
import ipaddress
import socket

import pytest

from tfplace.errors import MeasurementError
from tfplace.measure.local import host as host_lib

LOOPBACK, OTHER = "127.0.0.1", "127.0.0.2"


@contextlib.contextmanager
def like_tensorflow():
  """A socket on every address, of IPv6 and IPv4, as gRPC opens it."""
  with socket.socket(socket.AF_INET6) as found:
    found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    found.bind(("::", 0))
    found.listen()
    yield found, found.getsockname()[1]


def answers(host, port):
  try:
    with socket.create_connection((host, port), timeout=0.3):
      return True
  except OSError:
    return False


@pytest.mark.parametrize("own", [LOOPBACK, OTHER, "::1"])
def test_only_the_address_is_reached(own):
  with like_tensorflow() as (_, port):
    assert all(answers(host, port) for host in (LOOPBACK, OTHER, "::1"))
  with like_tensorflow() as (_, port):
    host_lib.restrict(port, ipaddress.ip_address(own))
    reached = {host: answers(host, port) for host in (LOOPBACK, OTHER, "::1")}
  assert reached == {host: host == own for host in reached}


def test_what_was_sent_arrives_through_the_filter():
  with like_tensorflow() as (found, port):
    host_lib.restrict(port, ipaddress.ip_address(OTHER))
    with socket.create_connection((OTHER, port), timeout=5) as sender:
      taken, _ = found.accept()
      sender.sendall(b"x" * 100_000)
      sender.shutdown(socket.SHUT_WR)
      with taken, taken.makefile("rb") as stream:
        assert stream.read() == b"x" * 100_000


def test_loopback_is_tied_to_its_device_as_well():
  with like_tensorflow() as (found, port):
    host_lib.restrict(port, ipaddress.ip_address(LOOPBACK))
    name = found.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
  assert name.rstrip(b"\0") == b"lo"


def test_the_unspecified_address_takes_all():
  with like_tensorflow() as (_, port):
    host_lib.restrict(port, ipaddress.ip_address("0.0.0.0"))
    assert answers(LOOPBACK, port)
    assert answers(OTHER, port)


def test_who_connected_before_the_filter_is_told():
  with (
    like_tensorflow() as (_, port),
    socket.create_connection((OTHER, port), timeout=5),
    pytest.raises(MeasurementError, match=f"{OTHER}.* not {LOOPBACK}"),
  ):
    host_lib.restrict(port, ipaddress.ip_address(LOOPBACK))


def test_a_port_of_nobody_is_an_error():
  with socket.socket() as bound:  # it does not listen
    bound.bind((LOOPBACK, 0))
    port = bound.getsockname()[1]
    with pytest.raises(MeasurementError, match=f"{port} cannot be tied"):
      host_lib.restrict(port, ipaddress.ip_address(LOOPBACK))


def test_a_name_without_an_address_is_an_error():
  with pytest.raises(MeasurementError, match=r"'no\.such\.invalid'"):
    host_lib.resolve("no.such.invalid")
