"""Server of one TensorFlow worker, for `tfplace-worker`.

The server is a child process, restarted on the same port if it dies.
"""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
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
  until: Sequence[socket.socket] = (),
) -> None:
  """Serves until an exception, such as that of a signal, ends it.

  Args:
    server: the address and its devices.
    on_ready: called with host:port each time the server is up.
    on_death: called with the cause of death before each restart.
    until: sockets that end the service when their other side closes.

  Raises:
    MeasurementError: the address cannot be served.
    ChildError: the server does not start.
  """
  address = host.resolve(server.host)
  handshake = workers.Handshake(
    metadata.version("tensorflow"), host.memory_bytes()
  )
  with host.reserved_port(str(address), server.port) as port:
    config = messages.ChildConfig(
      addresses=[f"localhost:{port}"],  # only the port matters
      job=handshake.job,
      listens_on=str(address),
      threads=_EXECUTOR_THREADS,
      op_threads=server.threads,
      gpus=server.gpus,
    )
    shown = f"[{address}]" if address.version == 6 else str(address)
    while True:
      child = runtime.Child("the server", config)
      try:
        child.receive(runtime.STARTUP_TIMEOUT_S, "starting the server")
        on_ready(f"{shown}:{port}")
        connection.wait([child.connection, *until])
        # The exit code follows a moment later.
        if connection.wait(until, _BETWEEN_STARTS_S):
          return
        on_death(child.death() or "closed its connection")
      finally:
        child.kill()


@contextlib.contextmanager
def served(server: Server, on_death: Callable[[str], None]) -> Iterator[None]:
  """Serves in another thread, see `serve`; entered once the server is up."""
  ours, theirs = socket.socketpair()
  is_up = threading.Event()
  with theirs, futures.ThreadPoolExecutor(1) as pool:
    with ours:  # Closing it ends the service.
      serving = pool.submit(
        serve, server, lambda _: is_up.set(), on_death, [theirs]
      )
      serving.add_done_callback(lambda _: is_up.set())
      is_up.wait()
      if not serving.done():
        yield
    serving.result()  # Raises what ended the service early.
