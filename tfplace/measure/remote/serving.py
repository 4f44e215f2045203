"""Server of one TensorFlow worker, for `tfplace-worker`.

The server is a child process, restarted on the same port if it dies.
"""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from multiprocessing import connection

from tfplace.measure.local import host, runtime
from tfplace.measure.remote import workers
from tfplace.measure.session import messages

_EXECUTOR_THREADS = 2  # per device: one for ops, one to send tensors
_BETWEEN_STARTS_S = 1.0


@dataclasses.dataclass(frozen=True)
class Server:
  """Configuration of a served worker.

  Attributes:
    host: address or name of this host to listen on; "0.0.0.0" or "::" for all.
    port: port number, or 0 for any free port.
    threads: threads inside an op; 0 for as many as cores.
    gpus: whether the host's GPUs are devices, too.
  """

  host: str
  port: int
  threads: int = 0
  gpus: bool = False


def serve(
  server: Server,
  on_ready: Callable[[str], None],
  on_death: Callable[[str], None],
) -> None:
  """Serves until an exception, such as that of a signal, ends it.

  Args:
    on_ready: called with host:port each time the server is up.
    on_death: called with the cause of death before each restart.

  Raises:
    MeasurementError: the address cannot be served.
    ChildError: the server does not start.
  """
  with _held(server) as (shown, config):
    while True:
      with _child(config) as child:
        _await_up(child)
        on_ready(shown)
        connection.wait([child.connection])  # readable only at its end
        time.sleep(_BETWEEN_STARTS_S)  # the exit code follows a moment later
        on_death(child.death() or "closed its connection")


@contextlib.contextmanager
def served(server: Server, on_death: Callable[[str], None]) -> Iterator[None]:
  """Serves in the background; entered once the server is up.

  Args:
    on_death: called in another thread with the cause of death before each
      restart.

  Raises:
    MeasurementError: the address cannot be served.
    ChildError: the server does not start.
  """
  ours, theirs = socket.socketpair()
  with ours, theirs, _held(server) as (_, config), contextlib.ExitStack() as up:
    child = up.enter_context(_child(config))
    _await_up(child)
    keeper = threading.Thread(
      target=_keep_up,
      args=(child, config, theirs, on_death),
      name="tfplace-served",
      daemon=True,
    )
    keeper.start()
    try:
      yield
    finally:
      ours.close()
      keeper.join()


def _keep_up(
  child: runtime.Child,
  config: messages.ChildConfig,
  end: socket.socket,
  on_death: Callable[[str], None],
) -> None:
  """Restarts a dead server until the other side of `end` closes."""
  with contextlib.ExitStack() as stack:
    while True:
      # A server's connection is readable when it is up, and at its end.
      if end in connection.wait([child.connection, end]):
        return
      with contextlib.suppress(EOFError, OSError):
        child.connection.recv()
        continue
      if end in connection.wait([end], _BETWEEN_STARTS_S):
        return
      on_death(child.death() or "closed its connection")
      stack.close()
      child = stack.enter_context(_child(config))


@contextlib.contextmanager
def _held(server: Server) -> Iterator[tuple[str, messages.ChildConfig]]:
  """Reserves the port; yields host:port and the server's configuration."""
  address = host.resolve(server.host)
  with host.held(str(address), server.port) as port:
    shown = f"[{address}]" if address.version == 6 else str(address)
    yield f"{shown}:{port}", _config(server, str(address), port)


def _config(server: Server, address: str, port: int) -> messages.ChildConfig:
  handshake = workers.Handshake(
    metadata.version("tensorflow"), host.memory_bytes()
  )
  return messages.ChildConfig(
    addresses=[f"localhost:{port}"],  # only the port matters
    job=handshake.job,
    listens_on=address,
    threads=_EXECUTOR_THREADS,
    op_threads=server.threads,
    gpus=server.gpus,
  )


@contextlib.contextmanager
def _child(config: messages.ChildConfig) -> Iterator[runtime.Child]:
  # A server that a signal leaves behind here ends with this process's pipe.
  child = runtime.Child("the server", config)
  try:
    yield child
  finally:
    child.kill()


def _await_up(child: runtime.Child) -> None:
  runtime.receive(
    child, [child], runtime.STARTUP_TIMEOUT_S, "starting the server"
  )
