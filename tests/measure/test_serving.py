"""The command `tfplace-worker`: one line, one address, a clean end."""

import os
import shutil
import signal
import socket
import subprocess

import grpc
import psutil
import pytest

from tests.testing.served_workers import await_true, serving
from tests.testing.slow import SLOW
from tfplace.bin import worker


def reaches(host, port):
  try:
    with socket.create_connection((host, port), timeout=0.5):
      return True
  except OSError:
    return False


def is_alive(pid):
  return os.path.exists(f"/proc/{pid}")


def listeners(pid):
  """Addresses on which a process listens, as `ss` (iproute2) prints them."""
  found = subprocess.run(
    ["ss", "-Hltnp"], capture_output=True, text=True, check=True
  )
  lines = found.stdout.splitlines()
  return [line.split()[3] for line in lines if f"pid={pid}," in line]


@pytest.mark.skipif(not shutil.which("ss"), reason="iproute2 is missing")
def test_local_workers_listen_on_loopback(workers):
  workers.start()
  for pid in workers.pids:
    (address,) = listeners(pid)
    assert address.startswith("*%lo:")


def test_it_serves_on_loopback_and_is_gone_after_a_signal():
  binds = ("127.0.0.2:0", "127.0.0.1:0")
  with serving(binds) as (other, loopback):
    assert other.address.startswith("127.0.0.2:")
    assert reaches("127.0.0.2", other.port)
    assert reaches("127.0.0.1", loopback.port)
    pids = [other.server_pid(), loopback.server_pid()]
    if shutil.which("ss"):
      assert listeners(pids[0]) == [f"*%lo:{other.port}"]
      assert listeners(pids[1]) == [f"*%lo:{loopback.port}"]
    assert other.end(signal.SIGTERM) == (0, "", "")
    assert loopback.end(signal.SIGINT) == (0, "", "")
    assert not any(is_alive(pid) for pid in pids)
    assert not reaches("127.0.0.2", other.port)


def test_a_taken_port_is_one_line(capsys):
  with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    assert worker.run([f"--bind=127.0.0.1:{port}"]) == 1
  errors = capsys.readouterr().err.splitlines()
  assert len(errors) == 1
  assert f"127.0.0.1 port {port}: Address already in use" in errors[0]


def test_a_bad_address_is_one_line(capsys):
  assert worker.run(["--bind=no.such.invalid:2222"]) == 1
  (error,) = capsys.readouterr().err.splitlines()
  assert "host 'no.such.invalid' has no address" in error


def test_beyond_loopback_it_warns_first(capsys):
  # An address for documentation (RFC 5737), which no host has.
  assert worker.run(["--bind=198.51.100.7:2222"]) == 1
  warning, error = capsys.readouterr().err.splitlines()
  assert "anyone who reaches 198.51.100.7:2222 can run" in warning
  assert "198.51.100.7 port 2222: this host has no such address" in error


@SLOW
def test_memory_of_a_large_message_is_returned_when_idle():
  """Empty nodes of 2 bytes each take 160 bytes as they are parsed."""
  nodes = b"\x0a\x00" * (5 << 20)
  size = bytes([0x80, 0x80, 0x80, 0x05])  # 5 << 21 in base 128.
  with serving(("127.0.0.1:0",)) as (worker_,):
    server = psutil.Process(worker_.server_pid())
    before = server.memory_info().rss
    with grpc.insecure_channel(
      worker_.address, [("grpc.max_send_message_length", -1)]
    ) as channel:
      ask = channel.unary_unary("/tensorflow.MasterService/CreateSession")
      with pytest.raises(grpc.RpcError, match="Illegal op name"):
        ask(b"\x0a" + size + nodes, timeout=60)
    assert server.memory_info().rss > before + (500 << 20)
    assert await_true(
      lambda: server.memory_info().rss < before + (100 << 20), 30.0
    )
