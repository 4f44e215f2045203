"""Tasks of one cluster that start the same command.

Every task serves one worker. The first one also runs the command, and the
others end once its worker is gone.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from tfplace.errors import MeasurementError
from tfplace.measure.local import host
from tfplace.measure.remote import resolvers, serving, workers

START_S = 300.0  # for all tasks to start
_GONE_S = 10.0  # after which a worker that died would have been restarted
_POLL_S = 1.0


def check_reachable(task: resolvers.Task) -> None:
  """Checks that other hosts can reach the address of this task's worker.

  Raises:
    MeasurementError: the address is of loopback here, and others are not.
  """
  worker = task.worker
  if worker is None or not _is_loopback(worker):
    return
  for other in task.hosts.workers:
    if not _is_loopback(other):
      raise MeasurementError(
        f"{worker} is this task's, but has the address"
        f" {host.resolve(worker.host)} here, which {other} cannot reach; remove"
        f" {worker.host} from /etc/hosts, or use addresses in place of names"
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
    entered when its worker is gone.

  Raises:
    MeasurementError: the worker cannot be served, or the first one does not
      start.
  """
  worker = task.worker
  if worker is None:
    yield True
    return
  check_reachable(task)
  with contextlib.ExitStack() as stack:
    name, port = workers.split_address(worker.address)
    server = serving.Server(name, port, gpus=True)
    stack.enter_context(serving.served(server, on_death))
    if task.index:
      await_end(task.hosts.workers[0])
    yield task.index == 0


def await_end(first: workers.Worker) -> None:
  """Waits until the worker of the first task is gone.

  Raises:
    MeasurementError: its worker does not start.
  """
  seen, since = False, time.monotonic()
  while True:
    problem = "".join(workers.check([first]))
    now = time.monotonic()
    if not problem:
      seen, since = True, now
    elif seen and now - since > _GONE_S:
      return
    elif not seen and now - since > START_S:
      raise MeasurementError(
        f"no sign of the first task for {START_S:g} s: {problem}"
      )
    time.sleep(_POLL_S)
