"""Workers that are not there, hang or are something else: told in time."""

import contextlib
import socket
import threading
import time
from concurrent import futures

import grpc
import pytest

from tfplace.measure.remote import workers

TIMEOUT_S = 0.5
SOON_S = 200.0  # a third of what who is silent waits


@contextlib.contextmanager
def port_that(answer):
  """A port whose connections are read and then answered, None: never."""
  with socket.create_server(("127.0.0.1", 0)) as server:

    def serve():
      with contextlib.suppress(OSError):
        while True:
          taken, _ = server.accept()
          with taken:
            taken.recv(1024)
            if answer is None:
              is_over.wait(3 * SOON_S)
            taken.sendall(answer or b"")

    is_over = threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    is_over.set()
    server.shutdown(socket.SHUT_RDWR)


def worker_on(port):
  return workers.Worker(f"127.0.0.1:{port}", "a")


def problem_of(port):
  began = time.monotonic()
  (found,) = workers.check([worker_on(port)], TIMEOUT_S)
  assert time.monotonic() - began < SOON_S
  assert found.startswith(f"worker 'a' at 127.0.0.1:{port} ")
  return found


def test_nobody_there():
  with socket.socket() as bound:  # it does not listen
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    assert "cannot be reached: Connection refused" in problem_of(port)


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request", b""])
def test_somebody_else(answer):
  with port_that(answer) as port:
    assert "does not answer as a TensorFlow server" in problem_of(port)


def test_a_grpc_server_that_comes_back_is_awaited():
  with socket.socket() as later:
    later.bind(("127.0.0.1", 0))
    port = later.getsockname()[1]
  worker = worker_on(port)
  assert workers.check_until([worker], time.monotonic() - 1) != []
  server = grpc.server(futures.ThreadPoolExecutor(1))
  server.add_insecure_port(f"127.0.0.1:{port}")
  timer = threading.Timer(0.5, server.start)
  timer.start()
  assert workers.check_until([worker], time.monotonic() + 600) == []
  timer.join()
  server.stop(None)
