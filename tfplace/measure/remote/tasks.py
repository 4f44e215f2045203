"""Tasks of one cluster that start the same command.

Every task serves its own worker. The first one also runs the command, and the
others end when it releases them: after its worker has stopped, it listens on
the worker's address and tells each caller. The others hold a connection to that
address, so they notice at once that the worker stopped, and the measured
devices stay idle meanwhile.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from tfplace.errors import MeasurementError
from tfplace.measure.local import host
from tfplace.measure.remote import resolvers, serving, workers

START_S = 300.0  # for all tasks to start
_LOST_S = 60.0  # for a dead worker to restart; see hosts.py
_RELEASE_S = 10.0  # for all tasks to ask
_RELEASED = b"tfplace: released\n"
_POLL_S = 0.2
# Seconds without an answer, seconds between probes and number of probes after
# which a silent machine counts as gone.
_KEEPALIVE = (30, 10, 3)


def check_reachable(task: resolvers.Task) -> None:
  """Checks that other hosts can reach the address of this task's worker.

  Raises:
    MeasurementError: the address is of loopback here, and others are not.
  """
  own = task.own
  if own is None or not _is_loopback(own):
    return
  for other in task.hosts.workers:
    if not _is_loopback(other):
      raise MeasurementError(
        f"{own} is this task's, but has the address {host.resolve(own.host)}"
        f" here, which {other} cannot reach; remove {own.host} from /etc/hosts,"
        " or use addresses in place of names"
      )


def _is_loopback(worker: workers.Worker) -> bool:
  try:
    return host.resolve(worker.host).is_loopback
  except MeasurementError:  # Reported when the worker is asked.
    return True


@contextlib.contextmanager
def taking_part(
  task: resolvers.Task, on_death: Callable[[str], None]
) -> Iterator[bool]:
  """Serves the worker of this task while the first task runs the command.

  Args:
    on_death: called with the cause when the worker dies.

  Yields:
    Whether this process runs the command. For other tasks, the context is
    entered when they are released.

  Raises:
    MeasurementError: the worker cannot be served, or the first one is lost.
  """
  own = task.own
  if own is None:
    yield True
    return
  check_reachable(task)
  with contextlib.ExitStack() as stack:
    if task.index == 0:
      stack.callback(release, task)  # after the worker has stopped
    name, port = workers.split_address(own.address)
    server = serving.Server(name, port, gpus=True)
    stack.enter_context(serving.served(server, on_death))
    if task.index:
      await_release(task.hosts.workers[0])
    yield task.index == 0


def await_release(first: workers.Worker) -> None:
  """Waits until the first task ends.

  Raises:
    MeasurementError: its worker does not start, or is gone for too long.
  """
  waits_s, since = START_S, time.monotonic()
  while True:
    with contextlib.suppress(OSError), _connected(first) as connection:
      if _says_released(connection):
        return
      if not workers.check([first]):
        _await_end(connection)
        waits_s, since = _LOST_S, time.monotonic()
    if time.monotonic() - since > waits_s:
      problem = "".join(workers.check([first])) or f"{first} ended connections"
      raise MeasurementError(
        f"no sign of the first task for {waits_s:g} s: {problem}"
      )
    time.sleep(_POLL_S)


def _connected(first: workers.Worker) -> socket.socket:
  where = workers.split_address(first.address)
  found = socket.create_connection(where, workers.TIMEOUT_S)
  found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
  for option, value in zip(options, _KEEPALIVE, strict=True):
    found.setsockopt(socket.IPPROTO_TCP, option, value)
  return found


def _says_released(connection: socket.socket) -> bool:
  """Reads the first bytes; a gRPC server sends its settings at once."""
  try:
    return connection.recv(len(_RELEASED)) == _RELEASED
  except TimeoutError:
    return False


def _await_end(connection: socket.socket) -> None:
  connection.settimeout(None)
  with contextlib.suppress(OSError):
    while connection.recv(1024):
      pass


def release(task: resolvers.Task) -> None:
  """Releases the other tasks; called by the first after its worker stopped."""
  name, port = workers.split_address(task.hosts.workers[0].address)
  address = host.resolve(name)
  family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
  deadline = time.monotonic() + _RELEASE_S
  with (
    contextlib.suppress(OSError),  # Tasks that did not ask miss the worker.
    socket.create_server((str(address), port), family=family) as listening,
  ):
    for _ in task.hosts.workers[1:]:
      listening.settimeout(max(0.01, deadline - time.monotonic()))
      connection, _ = listening.accept()
      with connection:
        connection.sendall(_RELEASED)
