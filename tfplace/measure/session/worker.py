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
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, TypeAlias

from tfplace.errors import MeasurementError
from tfplace.measure.local import host
from tfplace.measure.session import messages

_FAILURES = {
  "ResourceExhaustedError": "out_of_memory",
  "MemoryError": "out_of_memory",
  "UnavailableError": "lost",
  "AbortedError": "lost",
}
_PARENT_CHECK_S = 1.0
_IDLE_S = 5.0  # Without work, until a server returns freed memory.
_IDLE_SHARE = 0.02  # Of a core, by the polls of an idle server.


def main(argv: list[str]) -> None:
  """Serves the parent on the socket `argv[1]` until the parent closes it."""
  _end_with_parent()
  _prefer_for_oom_kill()
  _skip_keras()
  parent = connection.Connection(int(argv[1]))
  config = parent.recv()
  if config.core is not None:
    os.sched_setaffinity(0, {config.core})
  try:
    ready, run = _start(config)
  except Exception as error:
    parent.send(_failure(error))
    os._exit(1)
  parent.send(ready)
  if config.listens_on is not None:
    threading.Thread(target=_return_memory_when_idle, daemon=True).start()
  with contextlib.suppress(EOFError, OSError):
    _serve(run, parent)
  # TensorFlow's servers cannot be stopped cleanly, so destructors are skipped.
  os._exit(0)


def _end_with_parent() -> None:
  """Ends this process when its parent ends, for any reason.

  The parent holds the pipe of this process's standard input. Linux sends its
  parent-death signal when the spawning thread ends, so the pipe is used
  instead. A fork of the parent may keep the pipe open, so the parent's id is
  watched, too. A stopped process cannot watch anything. But its own process
  group becomes orphaned, and the kernel then sends SIGHUP and SIGCONT to
  stopped members.
  """
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  os.setpgid(0, 0)
  parent = os.getppid()

  def watch() -> None:
    while os.getppid() == parent:
      readable, _, _ = select.select([0], [], [], _PARENT_CHECK_S)
      if readable and not os.read(0, 1):
        break
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


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


def _serve(run: "_Run", parent: connection.Connection) -> None:
  while True:
    request = parent.recv()
    try:
      parent.send(run(request, lambda name: parent.send(messages.Stage(name))))
    except (EOFError, OSError):
      raise
    except Exception as error:
      parent.send(_failure(error))


# Runs a request, and reports its stages.
_Run: TypeAlias = Callable[[Any, Callable[[str], None]], Any]


def _start(config: messages.ChildConfig) -> tuple[messages.Ready, _Run]:
  """Starts the runtime; returns what it has, and the function that runs."""
  # These modules import TensorFlow.
  from tfplace.measure.local import gpus
  from tfplace.measure.session import session, step_stats

  step_stats.configure(config)
  proto = session.session_config(config)
  server, devices, described = None, {}, list[gpus.LocalGpu]()
  if config.addresses:
    server = session.make_server(config, session.unoptimized(proto))
    _restrict(config)
    server.start()
  elif not config.remote:
    devices = session.devices("", proto)
    described = gpus.describe(devices) if config.describes_gpus else []
  ready = messages.Ready(
    devices,
    [gpu.device for gpu in described],
    [session.answer(address) for address in config.remote],
  )

  def run(request: Any, report: Callable[[str], None]) -> Any:
    target = server.target if server else ""
    if config.remote:
      target = f"grpc://{config.remote[0]}"
    is_times = isinstance(request, messages.TimesRequest)
    function = session.time_each if is_times else session.run_steps
    return function(request, target, proto, report)

  return ready, run


def _restrict(config: messages.ChildConfig) -> None:
  """Restricts a server to connections from loopback, unless it has an address.

  Raises:
    MeasurementError: an address of loopback is asked for, and the kernel does
      not support the restriction.
  """
  port = int(config.addresses[config.task].rpartition(":")[2])
  address = ipaddress.ip_address(config.listens_on or host.LOOPBACK)
  if address.is_loopback:
    try:
      host.keep_on_loopback(port)
    except MeasurementError:
      if config.listens_on is not None:
        raise


def _failure(error: Exception) -> messages.Failure:
  text = " ".join(str(error).split())[:600] or type(error).__name__
  kind = _FAILURES.get(type(error).__name__, "failed")
  if "Could not start gRPC server" in text:
    kind = "address_in_use"
  return messages.Failure(kind, text)


if __name__ == "__main__":
  main(sys.argv)
