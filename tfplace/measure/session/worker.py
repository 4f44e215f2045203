"""Measuring process: `python -m tfplace.measure.session.worker FD`.

Only `runtime.Child` starts it. It serves a TensorFlow worker on loopback, or
uses its own devices if it has no addresses, and runs the steps that its parent
sends. It ends with its parent, which holds the pipe of its standard input.
"""

import contextlib
import ctypes
import ipaddress
import os
import resource
import sys
import threading
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from tfplace.errors import MeasurementError
from tfplace.graph.child_process import end_with_parent
from tfplace.measure.local import host
from tfplace.measure.session import messages

if TYPE_CHECKING:
  import tensorflow as tf

_FAILURES = {
  "ResourceExhaustedError": "out_of_memory",
  "MemoryError": "out_of_memory",
  "UnavailableError": "lost",
  "AbortedError": "lost",
}
_IDLE_S = 5.0  # Without work, until a server returns freed memory.
_IDLE_SHARE = 0.02  # Of a core, by the polls of an idle server.
_RUNTIME_BYTES = 256 << 20  # stacks and arenas of threads not started yet


def main(argv: list[str]) -> None:
  """Serves the parent on the socket `argv[1]` until the parent closes it."""
  end_with_parent()
  _prefer_for_oom_kill()
  _skip_keras()
  parent = connection.Connection(int(argv[1]))
  config = parent.recv()
  if config.core is not None:
    os.sched_setaffinity(0, {config.core})
  try:
    runtime = _Runtime(config)
  except Exception as error:
    parent.send(_failure(error))
    os._exit(1)
  parent.send(runtime.ready)
  if config.listens_on is not None:
    threading.Thread(target=_return_memory_when_idle, daemon=True).start()
  with contextlib.suppress(EOFError, OSError):
    _serve(runtime, parent)
  # TensorFlow's servers cannot be stopped cleanly, so destructors are skipped.
  os._exit(0)


def _prefer_for_oom_kill() -> None:
  """Makes this process the first OOM victim, and disables core dumps."""
  _, hard = resource.getrlimit(resource.RLIMIT_CORE)
  resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
  with (
    contextlib.suppress(OSError),
    open("/proc/self/oom_score_adj", "w", encoding="ascii") as score,
  ):
    score.write("1000")


def _skip_keras() -> None:
  """Blocks TensorFlow's optional import of Keras, a third of startup time."""
  sys.modules.setdefault("keras", None)  # type: ignore[arg-type]


def _return_memory_when_idle() -> None:
  """Returns freed memory to the system whenever this server is idle.

  Between steps it is kept (see `runtime._KEEP_MEMORY`), but a large message
  would be kept forever, too.
  """
  trim = ctypes.CDLL(None).malloc_trim
  while True:
    before_s = time.process_time()
    time.sleep(_IDLE_S)
    if time.process_time() - before_s < _IDLE_SHARE * _IDLE_S:
      trim(0)


def _serve(runtime: "_Runtime", parent: connection.Connection) -> None:
  while True:
    request = parent.recv()
    try:
      parent.send(runtime.run(request, parent))
    except (EOFError, OSError):
      raise
    except Exception as error:
      parent.send(_failure(error))


class _Runtime:
  def __init__(self, config: messages.ChildConfig) -> None:
    # These modules import TensorFlow.
    from tfplace.measure.local import gpus
    from tfplace.measure.session import session, step_stats

    step_stats.configure(config)
    self._session = session
    self._config = config
    self._proto = session.session_config(config)
    self._server: tf.distribute.Server | None = None
    loopback_only = True
    if config.addresses:
      self._server = session.make_server(
        config, session.unoptimized(self._proto)
      )
      loopback_only = _restrict(config)
      self._server.start()
    # With a server, a session would wait for the other workers at this point.
    alone = not (config.addresses or config.remote)
    devices = session.devices("", self._proto) if alone else {}
    described = gpus.describe(devices) if config.describes_gpus else ()
    self.ready = messages.Ready(
      loopback_only,
      devices,
      [gpu.device for gpu in described],
      *session.ask(config.remote),
    )
    if config.memory_limit_bytes is not None and config.task:
      limit_data(config.memory_limit_bytes)

  @property
  def _target(self) -> str:
    if self._config.remote:
      return f"grpc://{self._config.remote[0]}"
    return self._server.target if self._server else ""

  def run(self, request: Any, parent: connection.Connection) -> Any:
    def report(stage: str) -> None:
      parent.send(messages.Stage(stage))

    where = self._target, self._proto, report
    if isinstance(request, messages.TimesRequest):
      return self._session.time_each(request, *where)
    return self._session.run_steps(request, *where, self._limit_memory)

  def _limit_memory(self) -> None:
    """Limits the memory of task 0 once it has built the graph."""
    if self._config.memory_limit_bytes is not None and not self._config.task:
      limit_data(self._config.memory_limit_bytes)


def limit_data(growth_bytes: float) -> None:
  """Limits the growth of this process's private data.

  The kernel counts thread stacks at their maximum size, so these get an
  additional allowance.
  """
  with open("/proc/self/status", encoding="ascii") as status:
    fields = dict(line.split(":", 1) for line in status if ":" in line)
  now = int(fields["VmData"].split()[0]) * 1024
  limit = now + int(growth_bytes) + _RUNTIME_BYTES
  _, hard = resource.getrlimit(resource.RLIMIT_DATA)
  resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _restrict(config: messages.ChildConfig) -> bool:
  """Keeps a server of loopback there; returns whether it is."""
  port = int(config.addresses[config.task].rpartition(":")[2])
  address = ipaddress.ip_address(config.listens_on or host.LOOPBACK)
  if not address.is_loopback:
    return False
  try:
    host.keep_on_loopback(port)
  except MeasurementError:
    if config.listens_on is not None:
      raise
    return False
  return True


def _failure(error: Exception) -> messages.Failure:
  text = " ".join(str(error).split())[:600] or type(error).__name__
  kind = _FAILURES.get(type(error).__name__, "failed")
  if "Could not start gRPC server" in text:
    kind = "address_in_use"
  return messages.Failure(kind, text)


if __name__ == "__main__":
  main(sys.argv)
