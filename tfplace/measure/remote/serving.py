"""Serves one TensorFlow worker until a signal, for `tfplace-worker`.

The server is a child process with the settings of a local worker. When it dies
(a measured placement may take all of its memory), it is started again on the
same port, so that other placements can still be measured.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from multiprocessing import connection
from types import FrameType

from tfplace.measure.local import host, runtime
from tfplace.measure.remote import workers
from tfplace.measure.session import messages

_EXECUTOR_THREADS = 2  # of each device: its op, and the sending of tensors
_BETWEEN_STARTS_S = 1.0


@dataclasses.dataclass(frozen=True)
class Server:
  """What is served.

  Attributes:
    host: address or name of this host to listen on; "0.0.0.0" or "::" for all.
    port: or 0 for any that is free.
    threads: that an op may use; 0: as many as cores.
    gpus: whether the host's GPUs are devices too.
  """

  host: str
  port: int
  threads: int = 0
  gpus: bool = False


class _Stopped(BaseException):
  """A signal asked for the end."""


def serve(
  server: Server,
  on_ready: Callable[[str], None],
  on_death: Callable[[str], None],
) -> None:
  """Serves until SIGTERM or SIGINT; leaves no process behind.

  Args:
    server: what is served.
    on_ready: called with host:port each time that the server is up.
    on_death: called with how the server died, before it is started again.

  Raises:
    MeasurementError: the address cannot be served on.
    ChildError: the server does not come up.
  """
  address = host.resolve(server.host)
  shown = f"[{address}]" if address.version == 6 else str(address)
  with (
    _ended_by_signals() as signals,
    host.held(str(address), server.port) as port,
  ):
    config = _config(server, str(address), port)
    while True:
      with _child(config, signals) as child:
        on_ready(f"{shown}:{port}")
        connection.wait([child.connection])  # it never speaks again
        time.sleep(_BETWEEN_STARTS_S)  # its end shows a moment later
        on_death(child.death() or "closed its connection")


def _config(server: Server, address: str, port: int) -> messages.ChildConfig:
  handshake = workers.Handshake(
    metadata.version("tensorflow"), host.memory_bytes()
  )
  return messages.ChildConfig(
    addresses=[f"localhost:{port}"],  # only the port counts
    job=handshake.job,
    listens_on=address,
    threads=_EXECUTOR_THREADS,
    op_threads=server.threads,
    gpus=server.gpus,
  )


@contextlib.contextmanager
def _child(
  config: messages.ChildConfig, signals: "_Signals"
) -> Iterator[runtime.Child]:
  with contextlib.ExitStack() as stack:
    with signals.deferred():  # else a signal could leave the process running
      child = runtime.Child("the server", config)
      stack.callback(child.kill)
    runtime.receive(
      child, [child], runtime.STARTUP_TIMEOUT_S, "starting the server"
    )
    yield child


class _Signals:
  """Handles SIGTERM and SIGINT by raising `_Stopped`, possibly deferred."""

  WANTED = (signal.SIGTERM, signal.SIGINT)

  def __init__(self) -> None:
    self._later = self._came = False

  def handle(self, number: int, frame: FrameType | None) -> None:
    for other in self.WANTED:  # a second one must not interrupt cleaning up
      signal.signal(other, signal.SIG_IGN)
    self._came = True
    if not self._later:
      raise _Stopped

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Raises for a signal that comes inside only at the end."""
    self._later = True
    try:
      yield
    finally:
      self._later = False
    if self._came:
      raise _Stopped


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[_Signals]:
  """Ends what is inside on SIGTERM or SIGINT."""
  signals = _Signals()
  before = [signal.signal(n, signals.handle) for n in signals.WANTED]
  try:
    with contextlib.suppress(_Stopped):
      yield signals
  finally:
    for number, handler in zip(signals.WANTED, before, strict=True):
      signal.signal(number, handler)
