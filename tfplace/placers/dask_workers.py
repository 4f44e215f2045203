"""Searches and samples on the workers of a Dask cluster.

A task is lost with its worker. Answers are checked here, and a worker that
fails, or answers wrongly or too late, gets no further tasks.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import json
import logging
import math
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from typing import Any

import tfplace
from tfplace.core.budget import cancelled_by
from tfplace.core.child_process import end_with_parent
from tfplace.core.evaluation import HistoryPoint, Result
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError, shown
from tfplace.placers import registry

LOCAL = "local"  # Workers on this machine, for this process only.
_ANSWER_S = 4.0  # For each answer of a scheduler.
_START_S = 60.0  # For a worker to start and to load what tasks need.
_POLL_S = 0.5  # Between two looks at a task.
_LATE_S, _LATE_S_PER_OP = 10.0, 1e-4  # For the setup of a search.
_HERE_SHARE = 0.25  # Least share of its budget for a search that was lost.
_logger = logging.getLogger("tfplace")


class Workers:
  """Workers that run tasks of this process, from several threads if need be.

  Args:
    client: Dask client of the cluster; the caller closes it.
    strategy: strategy that each worker loads before its first task.
  """

  def __init__(self, client: Any, strategy: str) -> None:
    self._client = client
    self._strategy = strategy
    self._loading: dict[str, Any] = {}  # Address -> task.
    self._busy: set[str] = set()
    self._lock = threading.Lock()
    self._is_gone = False
    self._refused: dict[str, str] = {}  # Address -> reason.
    self.is_closed = False

  @property
  def addresses(self) -> list[str]:
    """Workers that are ready, with this version of tfplace."""
    # A policy of `auto` runs where it would run here.
    asks = self._strategy == "auto" and "tensorflow" in sys.modules
    known, needs = self._loading, (self._strategy, asks)
    self._loading = {
      address: known.get(address) or self._submit(address, _load, *needs)
      for address in self._alive()
    }
    for address, task in self._loading.items():
      if task.status == "error":
        self._answer(task, address, 0.0, int)
    return [
      address
      for address, task in self._loading.items()
      if task.status == "finished" and address not in self._refused
    ]

  def wait(self, number: int) -> None:
    """Waits until workers are ready; raises TfplaceError if none is."""
    ready: list[str] = []
    end, is_loading = time.monotonic() + _START_S, True
    while is_loading or len(ready) + len(self._refused) < number:
      if time.monotonic() > end or self._is_gone:
        break
      time.sleep(_POLL_S / 10)
      ready, tasks = self.addresses, self._loading.values()
      is_loading = any(task.status == "pending" for task in tasks)
    if not ready:
      why = "; ".join(self._refused.values())
      raise TfplaceError(why or "there are no workers")

  def close(self) -> None:
    """Ends waiting for tasks in other threads."""
    self.is_closed = self._is_gone = True

  def run(
    self,
    function: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    accept: Callable[..., Any],
    limit_s: float = math.inf,
  ) -> list[Any]:
    """Runs `function(*call)` for each call, on a worker each.

    Args:
      accept: converts an answer, given the arguments of its call, and raises an
        exception if the answer is wrong.
      limit_s: time limit of the tasks in seconds.

    Returns:
      Results of `accept`; None if a task is lost or found no free worker.
    """
    end = time.monotonic() + limit_s
    with self._lock:
      free = [a for a in self.addresses if a not in self._busy][: len(calls)]
      self._busy.update(free)
    found, tasks = [None] * len(calls), []
    try:
      for address, call in zip(free, calls, strict=False):
        tasks.append(self._submit(address, function, *call))
      for i, task in enumerate(tasks):
        found[i] = self._answer(task, free[i], end, accept, *calls[i])
    finally:
      for task in tasks:
        task.release()  # Ends it if it still runs.
      self._busy.difference_update(free)
    return found

  def _submit(self, address: str, function: Any, *args: Any) -> Any:
    where = {"workers": [address], "allow_other_workers": False}
    args = tfplace.__version__, function, *args
    return self._client.submit(_run, *args, pure=False, **where)

  def _alive(self) -> list[str]:
    """Asks the scheduler for its workers; gives it up if it is silent."""
    try:
      if self._is_gone:
        return []
      if self._client.status != "running":
        raise OSError("it closed the connection")
      ask = self._client.scheduler.identity
      return sorted(
        self._client.sync(ask, callback_timeout=_ANSWER_S)["workers"]
      )
    except Exception as error:
      if not self._is_gone:
        _logger.warning("the Dask scheduler is lost: %s", _text(error))
      self._is_gone = True
      return []

  def _answer(
    self, task: Any, address: str, end: float, accept: Any, *args: Any
  ) -> Any:
    """Waits for an accepted answer, or refuses the worker and returns None."""
    why = ""
    while not why:
      try:
        wait_s = _POLL_S if task.status == "pending" else _START_S
        return accept(task.result(timeout=wait_s), *args)
      except Exception as error:
        if address not in self._alive():
          why = "is lost"
        elif not isinstance(error, TimeoutError) or task.status != "pending":
          why = f"fails: {_text(error)}"
        elif time.monotonic() > end:
          why = "does not answer in time"
    if address not in self._refused and not self._is_gone:
      self._refused[address] = f"the Dask worker {address} {why}"
      _logger.warning("%s; it gets no further tasks", self._refused[address])
    return None


def _text(error: BaseException) -> str:
  text = " ".join(str(error).split())[:300]
  name = "" if isinstance(error, TfplaceError) else type(error).__name__
  return ": ".join(filter(None, [name, text]))


def _run(version: str, function: Callable[..., Any], *args: Any) -> Any:
  """Runs a task on a worker of the same version."""
  if version != tfplace.__version__:
    raise TfplaceError(f"it has tfplace {tfplace.__version__}, not {version}")
  return function(*args)


def _load(strategy: str, loads_tensorflow: bool) -> None:
  from tfplace.placers.place import warm_up  # Compiles.

  if loads_tensorflow or strategy in registry.LEARNED:
    importlib.import_module("tensorflow")
  warm_up(strategy)


def place_on_workers(
  problem: Problem, workers: Workers, number: int | None, **options: Any
) -> Result:
  """Places a problem by a search with its own seed per worker; the best wins.

  Strategies without a search run in this process, which also takes over if no
  worker returns a placement.

  Args:
    number: searches at once; None means one per worker.
    **options: all arguments of `tfplace.place`; limits hold for each search.

  Raises:
    InfeasibleError: nothing that was found fits in memory.
    TfplaceError: the strategy fails.
  """
  from tfplace.placers.place import place  # Imports this module.

  strategy, seconds = options["strategy"], options["budget_s"]
  if registry.STRATEGIES[strategy].is_classical:
    return place(problem, **options)
  began, num_ops = time.monotonic(), problem.graph.num_ops
  limit_s = 1.25 * seconds + _LATE_S + _LATE_S_PER_OP * num_ops
  if problem.cluster.has_message_costs:  # Compiled on first use.
    limit_s += _START_S
  if options["max_evaluations"] is not None:
    limit_s = math.inf
  sent = {**options, "problem": problem.without_derived()}
  if isinstance(sent["init_placement"], Placement):
    sent["init_placement"] = sent["init_placement"].assignments
  number, content = number or len(workers.addresses), pickle.dumps(sent)
  calls = [(content, options["seed"] + i) for i in range(number)]
  accept = functools.partial(_accepted, problem)
  answers = workers.run(_search, calls, accept, limit_s)
  found = [answer for answer in answers if isinstance(answer, Result)]
  if found:
    return min(found, key=lambda result: result.evaluation.step_time_us)
  for error in filter(None, answers):
    raise error
  if workers.is_closed:
    raise TfplaceError("the Dask workers were closed")
  left_s = max(seconds + began - time.monotonic(), _HERE_SHARE * seconds)
  _logger.warning(
    "no Dask worker returned a placement, so %s runs here for up to %.1f s",
    *(strategy, left_s),
  )
  return place(problem, **{**options, "budget_s": left_s})


def _search(content: bytes, seed: int) -> Any:
  """Searches on a worker; returns plain data for `_accepted`, or the error."""
  from tfplace.placers.place import place

  try:
    with cancelled_by(_Unwanted()):
      best = place(**{**pickle.loads(content), "seed": seed})
  except TfplaceError as error:
    return error
  rows = [
    (r.strategy, r.placement.devices, r.seconds, r.evaluations)
    for r in (best, *best.tried)
  ]
  return best.order, rows, dict(best.skipped), best.other_order_us


class _Unwanted(threading.Event):
  """Event that is set once nobody waits for the task of this thread.

  Dask drops the result of a task that runs, but does not interrupt it.
  """

  def __init__(self) -> None:
    from distributed import get_worker

    super().__init__()
    self._tasks = get_worker().state.tasks
    self._key = get_worker().get_current_task()

  def is_set(self) -> bool:
    task = self._tasks.get(self._key)
    return task is None or task.state == "cancelled" or super().is_set()


def _accepted(problem: Problem, answer: Any, *_: Any) -> Result | TfplaceError:
  """Simulates what a worker found; raises an exception if it is invalid."""
  from tfplace.simulate import Simulator  # Compiles.

  if isinstance(answer, TfplaceError):
    return answer
  order, rows, skipped, other_us = answer
  problem = problem.in_order(order)
  simulator, results = Simulator(problem), []
  for strategy, devices, seconds, evaluations in rows:
    placement = Placement(problem, devices)
    (found,) = simulator.evaluate([placement])
    if not found.feasible:
      raise TfplaceError("its placement does not fit in memory")
    by, spent = str(strategy), (float(seconds), int(evaluations))
    history = (HistoryPoint(*spent, found.step_time_us, by),)
    results.append(Result(by, placement, found, history, *spent))
  return dataclasses.replace(
    results[0],
    tried=tuple(results[1:]),
    skipped={str(name): str(why) for name, why in skipped.items()},
    other_order_us=None if other_us is None else float(other_us),
  )


def check_dask(dask: str) -> None:
  """Raises TfplaceError if an address is no text, or Dask is not installed."""
  if not (isinstance(dask, str) and dask):
    raise TfplaceError(
      f"dask is {shown(dask)}; it must be the address of a Dask scheduler, such"
      f" as 'tcp://10.0.0.1:8786', or {LOCAL!r}"
    )
  for package in ("distributed", "cryptography"):
    if util.find_spec(package) is None:
      raise TfplaceError(
        f"dask={dask!r} needs the package {package}, which is not installed:"
        " pip install 'tfplace[dask]'"
      )


@contextlib.contextmanager
def opened_workers(dask: str, strategy: str = "single") -> Iterator[Workers]:
  """Connects to the workers of a Dask cluster, or starts local ones.

  Args:
    dask: address of a Dask scheduler such as "tcp://10.0.0.1:8786", or "local"
      for one worker per two cores of this machine: a search has two threads.
    strategy: strategy that each worker loads.

  Raises:
    TfplaceError: Dask is not installed, the scheduler does not answer, or no
      worker has this version of tfplace.
  """
  check_dask(dask)
  import distributed
  from dask import config

  with contextlib.ExitStack() as stack:
    # Problems of megabytes are sent on purpose.
    unlimited = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    stack.enter_context(config.set(unlimited))
    for name in ("distributed", "tornado.application"):
      logger = logging.getLogger(name)  # Logs each connection that closes.
      stack.callback(logger.setLevel, logger.level)
      logger.setLevel(logging.CRITICAL)
    address, security, number = dask, distributed.Security(), 1
    try:
      if dask == LOCAL:
        security = distributed.Security.temporary()
        number = max(1, len(os.sched_getaffinity(0)) // 2)
        address = stack.enter_context(_local_cluster(security, number))
      else:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
          greeting = asyncio.wait_for(_greet(dask, security), _ANSWER_S)
          pool.submit(asyncio.run, greeting).result()
      client = distributed.Client(
        address, timeout=_ANSWER_S, security=security, set_as_default=False
      )
      stack.callback(_close, client)
      workers = Workers(client, strategy)
      stack.callback(workers.close)
      workers.wait(number)
    except Exception as error:
      raise TfplaceError(
        f"no Dask worker is ready at dask={dask!r} ({_text(error)}): start a"
        " scheduler by `dask scheduler` and workers by `dask worker ADDRESS`,"
        f" with tfplace {tfplace.__version__}, or use dask={LOCAL!r}"
      ) from error
    yield workers


async def _greet(address: str, security: Any) -> None:
  """Raises an exception unless a Dask scheduler answers."""
  import distributed

  options = {"connection_args": security.get_connection_args("client")}
  async with distributed.rpc(
    address, deserialize=False, **options
  ) as scheduler:
    if "workers" not in await scheduler.identity():
      raise TfplaceError("what answers is no scheduler")


def _close(client: Any) -> None:
  with contextlib.suppress(Exception):  # The scheduler may be gone.
    client.close(timeout=1.0)


@contextlib.contextmanager
def _local_cluster(security: Any, number: int) -> Iterator[str]:
  """Starts a scheduler here and workers in processes that end with this one.

  They listen on loopback, and only to who knows the key of this process.
  Workers are commands, not forks, so scripts need no `__main__` guard.
  """
  import distributed

  options = {"host": "127.0.0.1", "security": security}
  scheduler = {"cls": _without_http(distributed.Scheduler), "options": options}
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  paths = filter(None, [package, os.environ.get("PYTHONPATH")])
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
  with contextlib.ExitStack() as stack:
    cluster = distributed.SpecCluster({}, scheduler, security=security)
    stack.enter_context(cluster)
    tls = security.get_tls_config_for_role("worker")
    for _ in range(number):
      child = subprocess.Popen(
        [sys.executable, "-m", "tfplace.placers.dask_workers"],
        stdin=subprocess.PIPE,  # See `end_with_parent`.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
      )
      stack.callback(child.wait)
      stack.callback(child.kill)
      about = json.dumps([cluster.scheduler_address, tls])
      print(about, file=child.stdin, flush=True)
    yield cluster.scheduler_address


def _without_http(server: type) -> type:
  """Returns a Dask server class that opens no HTTP port."""
  nothing = {"start_http_server": lambda *_, **__: None}
  return type(server.__name__, (server,), nothing)


async def _serve() -> None:
  """Runs a local worker, which the parent describes on standard input."""
  import distributed

  address, tls = json.loads(sys.stdin.readline())
  end_with_parent()
  security = distributed.Security(
    **{"require_encryption": True, "tls_ca_file": tls["ca_file"]},
    **{"tls_worker_cert": tls["cert"], "tls_worker_key": tls["key"]},
  )
  options = {"nthreads": 1, "memory_limit": 0, "host": "127.0.0.1"}
  # Its folder holds nothing, and a killed worker must not leave it behind.
  with tempfile.TemporaryDirectory() as folder:
    worker = await _without_http(distributed.Worker)(
      address, **options, security=security, local_directory=folder
    )
  await worker.finished()


if __name__ == "__main__":
  asyncio.run(_serve())
