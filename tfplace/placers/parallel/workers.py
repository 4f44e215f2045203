"""Worker processes of a Dask cluster, here or on other machines.

Dask sends functions to its workers, runs a task of a lost worker on another
one, and restarts local workers.
"""

import concurrent.futures
import contextlib
import importlib.util
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tfplace
from tfplace.core.budget import cancelled_by
from tfplace.errors import TfplaceError, shown

if TYPE_CHECKING:
  import distributed

LOCAL = "local"  # Workers on this machine, for this process only.
_CONNECT_S = 10.0  # For an answer of the scheduler.
_START_S = 60.0  # For the first worker.
_POLL_S = 0.5  # Between two looks at tasks.
_ALONE_S = 15.0  # Without any worker, until tasks are given up.
_ENDED = "the workers were closed"


class Workers:
  """Workers that run tasks for this process.

  Args:
    client: Dask client of the cluster; the caller closes it.
  """

  def __init__(self, client: "distributed.Client") -> None:
    self._client = client
    self._is_closed = False
    self._futures: set[Any] = set()
    # By function and arguments, then by address.
    self._prepared: dict[tuple[Any, ...], dict[str, Any]] = {}
    self._lock = threading.Lock()

  @property
  def addresses(self) -> list[str]:
    """Addresses of the workers that are there; none without the scheduler."""
    return sorted(self._client.scheduler_info(n_workers=-1).get("workers", ()))

  def submit(
    self,
    function: Callable[..., Any],
    *args: Any,
    address: str | None = None,
  ) -> "distributed.Future":
    """Starts `function(*args)` on a worker.

    Dask repeats the task elsewhere if its worker is lost, so the function must
    not have side effects.

    Args:
      address: Preferred worker, such as one of `addresses`.
    """
    with self._lock:
      if self._is_closed:
        raise concurrent.futures.CancelledError(_ENDED)
      future = self._client.submit(
        function,
        *args,
        pure=False,
        workers=None if address is None else [address],
        allow_other_workers=address is not None,
      )
      self._futures.add(future)
    future.add_done_callback(self._futures.discard)
    return future

  def submit_each(
    self, function: Callable[..., Any], tasks: Sequence[Sequence[Any]]
  ) -> "list[distributed.Future]":
    """Starts `function(*task)` for each task, on the workers in turn."""
    at: Sequence[str | None] = self.addresses or [None]
    return [
      self.submit(function, *task, address=at[i % len(at)])
      for i, task in enumerate(tasks)
    ]

  def start_preparing(
    self, function: Callable[..., None], args: Sequence[Any]
  ) -> None:
    """Starts `function(*args)` on each worker that has not begun it."""
    key = (function, *args)
    with self._lock:
      begun = self._prepared.setdefault(key, {})
    for address in self.addresses:
      if address not in begun:
        begun[address] = self.submit(function, *args, address=address)

  def prepare(self, function: Callable[..., None], args: Sequence[Any]) -> None:
    """Runs `function(*args)` once on each worker, for at most a minute."""
    self.start_preparing(function, args)
    key = (function, *args)
    self.results([*self._prepared[key].values()], _START_S)

  def results(
    self, futures: "Sequence[distributed.Future]", limit_s: float | None
  ) -> list[Any]:
    """Waits for tasks and returns what is there, in the given order.

    Tasks that are late are cancelled and missing in the result, as are all that
    are left once there has been no worker for a while.

    Args:
      limit_s: seconds to wait, or None to wait for all.

    Raises:
      TfplaceError: all tasks failed; gives the first reason.
    """
    self._wait(futures, math.inf if limit_s is None else limit_s)
    done = [future for future in futures if future.status == "finished"]
    failed = [future for future in futures if future.status == "error"]
    if failed and not done:
      error = failed[0].exception()
      raise TfplaceError(
        f"a task failed on a Dask worker: {type(error).__name__}: {error}"
      ) from error
    found = [future.result() for future in done]
    with contextlib.suppress(Exception):  # The scheduler may be gone.
      self._client.cancel([f for f in futures if f.status == "pending"])
    return found

  def _wait(
    self, futures: "Sequence[distributed.Future]", limit_s: float
  ) -> None:
    import distributed

    began = alive = time.monotonic()
    while any(future.status == "pending" for future in futures):
      now = time.monotonic()
      if self._is_closed or now - began >= limit_s:
        return
      if now - alive > _POLL_S and self.addresses:
        alive = now
      if now - alive > _ALONE_S:
        return
      left_s = min(_POLL_S, limit_s - (now - began))
      with (
        self._client.as_current(),
        contextlib.suppress(TimeoutError, concurrent.futures.CancelledError),
      ):
        distributed.wait(list(futures), timeout=max(left_s, 0.0))

  def close(self) -> None:
    """Cancels what still runs."""
    with self._lock:
      self._is_closed = True
      futures = list(self._futures)
    with contextlib.suppress(Exception):  # The scheduler may be gone.
      self._client.cancel(futures, force=True)


@contextlib.contextmanager
def ended_with_task() -> Iterator[None]:
  """Ends a worker's budgets in this context once nobody waits for the task.

  That is so if the task is cancelled, or its client is gone: Dask drops the
  result of a task that runs, but does not interrupt it.
  """
  import distributed

  worker = distributed.get_worker()
  key = worker.get_current_task()
  unwanted, done = threading.Event(), threading.Event()

  def watch() -> None:
    while not done.wait(_POLL_S):
      task = worker.state.tasks.get(key)
      if task is None or task.state == "cancelled":
        unwanted.set()
        return

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    with cancelled_by(unwanted):
      yield
  finally:
    done.set()
    thread.join()


def check_dask(dask: str) -> None:
  """Raises TfplaceError if an address is no text, or Dask is not installed."""
  if not (isinstance(dask, str) and dask):
    raise TfplaceError(
      f"dask is {shown(dask)}; it must be the address of a Dask scheduler, such"
      f" as 'tcp://10.0.0.1:8786', or {LOCAL!r}"
    )
  if importlib.util.find_spec("distributed") is None:
    raise TfplaceError(
      f"dask={dask!r} needs the package distributed, which is not installed:"
      " pip install 'tfplace[dask]'"
    )


@contextlib.contextmanager
def opened_workers(dask: str) -> Iterator[Workers]:
  """Connects to the workers of a Dask cluster, or starts local ones.

  On exit, tasks that still run are cancelled, and local workers end.

  Args:
    dask: Address of a Dask scheduler such as "tcp://10.0.0.1:8786", or "local"
      for one worker per two cores of this machine: a search has two threads.

  Raises:
    TfplaceError: Dask is not installed, the scheduler does not answer, or its
      workers lack this version of tfplace.
  """
  check_dask(dask)
  import dask.config as dask_config
  import distributed

  with contextlib.ExitStack() as stack:
    # Problems of megabytes are sent on purpose.
    unlimited = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    stack.enter_context(dask_config.set(unlimited))
    for name in ("distributed", "tornado.application"):
      stack.enter_context(_quiet(logging.getLogger(name)))
    cluster: Any = dask
    if dask == LOCAL:
      cluster = stack.enter_context(_local_cluster())
    client = stack.enter_context(_client(distributed, cluster, dask))
    workers = Workers(client)
    stack.callback(workers.close)
    _check_workers(client, dask)
    yield workers


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
  """Silences what Dask logs when connections close."""
  before = logger.level
  logger.setLevel(logging.CRITICAL)
  try:
    yield
  finally:
    logger.setLevel(before)


@contextlib.contextmanager
def _client(
  distributed: Any, cluster: Any, dask: str
) -> "Iterator[distributed.Client]":
  try:
    if isinstance(cluster, str):
      # A client with an invalid address takes 40 s to close.
      distributed.comm.get_address_host_port(cluster)
    client = distributed.Client(
      cluster, timeout=_CONNECT_S, set_as_default=False
    )
  except (OSError, ValueError, TimeoutError) as error:
    raise TfplaceError(
      f"no Dask scheduler answers at dask={dask!r} ({error}): start one with"
      f" `dask scheduler`, or use dask={LOCAL!r}"
    ) from error
  with client:
    yield client


def _local_cluster() -> "distributed.SpecCluster":
  """Starts a scheduler in this process and workers in processes of their own.

  Workers are commands, not forks, so scripts need no `__main__` guard. They end
  with this process.
  """
  import distributed
  from distributed.deploy import subprocess

  options = {
    "nthreads": 1,
    "memory_limit": 0,
    "dashboard": False,
    "silence_logs": logging.CRITICAL,
  }
  worker = {
    "cls": subprocess.SubprocessWorker,
    "options": {"worker_class": "distributed.Nanny", "worker_kwargs": options},
  }
  return distributed.SpecCluster(
    workers=dict.fromkeys(range(_num_local()), worker),
    worker=worker,
    scheduler={
      "cls": distributed.Scheduler,
      "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
    },
    silence_logs=logging.CRITICAL,
    name="tfplace",
  )


def _num_local() -> int:
  """Returns the number of local workers; a search has two threads."""
  return max(1, len(os.sched_getaffinity(0)) // 2)


def _check_workers(client: "distributed.Client", dask: str) -> None:
  """Waits for workers (all local ones) and compares versions."""
  number = _num_local() if dask == LOCAL else 1
  try:
    client.wait_for_workers(number, timeout=_START_S)
  except TimeoutError as error:
    raise TfplaceError(
      f"the Dask scheduler at dask={dask!r} has no workers: start them with"
      " `dask worker ADDRESS`"
    ) from error
  found = client.run(_version, on_error="return")
  for address, version in found.items():
    if version != tfplace.__version__:
      told = f"tfplace {version}"
      if isinstance(version, BaseException):
        told = f"no tfplace ({version})"
      raise TfplaceError(
        f"the Dask worker {address} has {told}: install tfplace"
        f" {tfplace.__version__}, as here"
      )


def _version() -> str:
  return tfplace.__version__
