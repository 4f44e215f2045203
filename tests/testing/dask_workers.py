"""Dask clusters for tests, with two workers of one thread on this machine."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import distributed
from distributed.deploy.subprocess import SubprocessWorker


@contextlib.contextmanager
def two_workers(restarts: bool = True) -> Iterator[tuple[str, Any]]:
  """Yields the address of a scheduler and a client of its own.

  Args:
    restarts: whether a killed worker is started again.
  """
  worker = {
    "cls": SubprocessWorker,
    "options": {
      "worker_class": "distributed.Nanny" if restarts else "distributed.Worker",
      "worker_kwargs": {"nthreads": 1, "dashboard": False},
    },
  }
  scheduler = {
    "cls": distributed.Scheduler,
    "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
  }
  workers = {0: worker, 1: worker}
  cluster = distributed.SpecCluster(workers, scheduler, worker)
  with (
    cluster,
    distributed.Client(cluster, set_as_default=False) as client,
  ):
    client.wait_for_workers(2)
    yield cluster.scheduler_address, client


def kill_a_busy_worker(
  client: Any, function: str = "_run", patience_s: float = 60.0
) -> str:
  """Kills the first worker with a task of `function`; returns its address."""
  pids = client.run(os.getpid)
  deadline = time.monotonic() + patience_s
  while time.monotonic() < deadline:
    busy = [
      a for a, keys in client.processing().items() if function in str(keys)
    ]
    if busy:
      os.kill(pids[busy[0]], signal.SIGKILL)
      return busy[0]
    time.sleep(0.02)
  raise TimeoutError("no worker has a task")
