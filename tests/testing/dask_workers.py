"""Dask clusters for tests, with two workers of one thread on this machine."""

import contextlib
from collections.abc import Iterator
from typing import Any

import distributed
from distributed.deploy.subprocess import SubprocessWorker

from tfplace.placers import warm_up


@contextlib.contextmanager
def two_workers() -> Iterator[tuple[str, Any]]:
  """Yields the address of a scheduler and a client of its own."""
  warm_up("auto")  # The workers then load what is compiled.
  worker = {
    "cls": SubprocessWorker,
    "options": {
      "worker_class": "distributed.Nanny",
      "worker_kwargs": {"nthreads": 1, "dashboard": False},
    },
  }
  scheduler = {
    "cls": distributed.Scheduler,
    "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
  }
  workers = {0: worker, 1: worker}
  cluster = distributed.SpecCluster(workers, scheduler, worker)
  with cluster, distributed.Client(cluster, set_as_default=False) as client:
    client.wait_for_workers(2)
    yield cluster.scheduler_address, client
