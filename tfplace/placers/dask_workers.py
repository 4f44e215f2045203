"""Searches and samples on the workers of a Dask cluster.

Answers are checked here. A task that fails, or ends wrongly or too late, costs
a warning and its result.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import math
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfplace.errors import TfplaceError, shown
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.placers.compilation import warm_up
from tfplace.placers.requests import Request
from tfplace.simulate import Simulator
from tfplace.version import VERSION

LOCAL = "local"  # A worker in a thread of this process.
_ANSWER_S = 4.0  # For each answer of a scheduler.
_START_S = 60.0  # For a worker to start, and to load and compile placers.
_POLL_S = 0.5  # Between two looks at a task.
_logger = logging.getLogger("tfplace")


class Workers:
  """Workers of a Dask cluster, for tasks from several threads if need be.

  Dask repeats the task of a lost worker on another one.

  Args:
    client: Dask client of the cluster; the caller closes it.
  """

  def __init__(self, client: Any) -> None:
    self._client = client
    self._is_gone = False

  @property
  def addresses(self) -> list[str]:
    """Workers that are alive; none once the scheduler is silent."""
    try:
      if self._is_gone:
        return []
      if self._client.status != "running":
        raise OSError("it closed the connection")
      ask = self._client.scheduler.identity
      return [*self._client.sync(ask, callback_timeout=_ANSWER_S)["workers"]]
    except Exception as error:
      if not self._is_gone:
        _logger.warning("the Dask scheduler is lost: %s", _text(error))
      self._is_gone = True
      return []

  def load(self, strategy: str) -> None:
    """Waits for the first workers and loads a strategy on each.

    Raises TfplaceError if there are none, or another version of tfplace.
    """
    end = time.monotonic() + _START_S
    while not (ready := self.addresses) and time.monotonic() < end:
      time.sleep(_POLL_S / 10)
    if not ready:
      raise TfplaceError("there are no workers")
    # A policy of `auto` runs where it would run here.
    asks = strategy == "auto" and "tensorflow" in sys.modules
    tasks = [
      self._submit(_load, VERSION, strategy, asks, workers=[a]) for a in ready
    ]
    for address, task in zip(ready, tasks, strict=True):
      try:
        task.result(timeout=_START_S)
      except Exception as error:
        why = f"the Dask worker {address} fails: {_text(error)}"
        raise TfplaceError(why) from error

  def send(self, data: Any) -> Any:
    """Sends data once, as a task; returns what other tasks are given for it."""
    # Dask repeats the task if its worker is lost.
    return self._submit(lambda same: same, data)

  def run(
    self,
    function: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    accept: Callable[..., Any],
    limit_s: float = math.inf,
  ) -> list[Any]:
    """Runs `function(*call)` for each call; the result of a lost task is None.

    Args:
      accept: converts an answer, given the arguments of its call, and raises an
        exception if the answer is wrong.
      limit_s: time limit of the tasks in seconds.
    """
    if not self.addresses:
      return [None] * len(calls)
    end = time.monotonic() + limit_s
    tasks = [self._submit(function, *call) for call in calls]
    try:
      return [
        self._answer(task, end, accept, call)
        for task, call in zip(tasks, calls, strict=True)
      ]
    finally:
      for task in tasks:
        task.release()  # Ends it if it still runs.

  def _submit(self, *args: Any, **options: Any) -> Any:
    return self._client.submit(*args, pure=False, **options)

  def _answer(
    self, task: Any, end: float, accept: Callable[..., Any], call: Any
  ) -> Any:
    """Waits for an accepted answer; returns None without one."""
    while True:
      try:
        wait_s = _POLL_S if task.status == "pending" else _START_S
        return accept(task.result(timeout=wait_s), *call)
      except Exception as error:
        waits = isinstance(error, TimeoutError) and task.status == "pending"
        if waits and self.addresses and time.monotonic() < end:
          continue
        if not self._is_gone:
          text = "a task on the Dask workers is lost: %s"
          _logger.warning(text, _text(error))
        return None


def _text(error: BaseException) -> str:
  text = " ".join(str(error).split())[:300]
  name = "" if isinstance(error, TfplaceError) else type(error).__name__
  return ": ".join(filter(None, [name, text]))


def _load(version: str, strategy: str, loads_tensorflow: bool) -> None:
  """Loads a strategy on a worker of the same version."""
  if version != VERSION:
    raise TfplaceError(f"it has tfplace {VERSION}, not {version}")
  if loads_tensorflow or strategy in registry.LEARNED:
    importlib.import_module("tensorflow")
  warm_up(strategy)


def place_on_workers(
  problem: Problem,
  workers: Workers,
  request: Request,
  starts: np.ndarray | None,
  *,
  place: Callable[[Problem, Request, np.ndarray | None], Result],
) -> Result:
  """Places a problem by a search with its own seed per worker; the best wins.

  Args:
    request: its limits hold for each search.
    starts: [num_starts, num_ops] devices to start from, or None.
    place: search in one process.

  Raises:
    InfeasibleError: nothing that was found fits in memory.
    TfplaceError: the strategy fails, or no worker returns a placement.
  """
  limit_s = math.inf
  if request.max_evaluations is None:
    setup_s = _START_S + 1e-4 * problem.graph.num_ops
    limit_s = 1.25 * request.budget_s + setup_s
  content = pickle.dumps((place, problem.without_derived(), request, starts))
  number = len(workers.addresses)
  calls = [(content, request.seed + i) for i in range(number)]
  accept = functools.partial(_accepted, problem)
  answers = workers.run(_search, calls, accept, limit_s)
  results = [answer for answer in answers if isinstance(answer, Result)]
  if results:
    return min(results, key=lambda result: result.evaluation.step_time_us)
  for error in filter(None, answers):
    raise error
  raise TfplaceError("no Dask worker returned a placement")


def _search(content: bytes, seed: int) -> Any:
  """Searches on a worker; returns plain data for `_accepted`, or the error."""
  place, problem, request, starts = pickle.loads(content)
  try:
    best = place(problem, dataclasses.replace(request, seed=seed), starts)
  except TfplaceError as error:
    return error
  rows = [
    (r.strategy, r.placement.devices, r.seconds, r.evaluations)
    for r in (best, *best.tried)
  ]
  return best.order, rows, dict(best.skipped), best.other_order_us


def _accepted(problem: Problem, answer: Any, *_: Any) -> Result | TfplaceError:
  """Simulates what a worker found; raises an exception if it is invalid."""
  if isinstance(answer, TfplaceError):
    return answer
  order, rows, skipped, other_us = answer
  problem = problem.in_order(order)
  simulator, results = Simulator(problem), []
  for strategy, devices, seconds, evaluations in rows:
    placement = Placement(problem, devices)
    (evaluation,) = simulator.evaluate([placement])
    if not evaluation.feasible:
      raise TfplaceError("its placement does not fit in memory")
    by, spent = str(strategy), (float(seconds), int(evaluations))
    history = (HistoryPoint(*spent, evaluation.step_time_us, by),)
    results.append(Result(by, placement, evaluation, history, *spent))
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
  if importlib.util.find_spec("distributed") is None:
    raise TfplaceError(
      f"dask={dask!r} needs the package distributed, which is not installed:"
      " pip install 'tfplace[dask]'"
    )


@contextlib.contextmanager
def opened_workers(dask: str, strategy: str = "single") -> Iterator[Workers]:
  """Connects to the workers of a Dask cluster, or starts a local one.

  Args:
    dask: address of a Dask scheduler such as "tcp://10.0.0.1:8786", or "local"
      for one thread of this process: a search uses all cores.
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
    try:
      is_local = dask == LOCAL
      address = stack.enter_context(_local_cluster()) if is_local else dask
      options = {"timeout": _ANSWER_S, "set_as_default": False}
      client = distributed.Client(address, **options)
      workers = Workers(client)
      stack.callback(client.close, timeout=1.0)
      workers.load(strategy)
    except Exception as error:
      raise TfplaceError(
        f"no Dask worker is ready at dask={dask!r} ({_text(error)}): start"
        " `dask scheduler` and `dask worker ADDRESS`, with tfplace"
        f" {VERSION}, or use dask={LOCAL!r}"
      ) from error
    yield workers


@contextlib.contextmanager
def _local_cluster() -> Iterator[str]:
  """Starts a worker in a thread of this process, which opens no port."""
  import distributed

  def without_http(server: type) -> type:
    nothing = {"start_http_server": lambda *_, **__: None}
    return type(server.__name__, (server,), nothing)

  scheduler, worker = (
    {"cls": without_http(kind), "options": options}
    for kind, options in (
      (distributed.Scheduler, {"protocol": "inproc://"}),
      (distributed.Worker, {"nthreads": 1, "memory_limit": 0}),
    )
  )
  with distributed.SpecCluster({0: worker}, scheduler) as cluster:
    yield cluster.scheduler_address
