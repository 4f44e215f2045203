"""Evaluation spread by Dask: a worker killed in mid-run loses nothing."""

import concurrent.futures
import os
import signal
import threading
import time

import distributed
import numpy as np

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.problem import Problem
from tfplace.placers.parallel.evaluator import ExecutorEvaluator
from tfplace.simulate import Simulator

OPS, ROWS, PARTS = 3000, 2400, 12  # a part takes some tenths of a second


def large_problem():
  """Ops that read up to three of the 50 before them, on two devices."""
  rng = np.random.default_rng(0)
  times = rng.uniform(1, 9, OPS)
  ops = [OpSpec(f"o{i}", "Op", {"GPU": t}, [8.0]) for i, t in enumerate(times)]
  edges = {
    (int(rng.integers(max(0, i - 50), i)), 0, i)
    for i in range(1, OPS)
    for _ in range(3)
  }
  devices = (Device("d0", "GPU"), Device("d1", "GPU"))
  links = (Link("d0", "d1", 1.0), Link("d1", "d0", 1.0))
  graph = build_graph("g", ops, sorted(edges))
  return Problem(graph, Cluster("c", devices, links))


class Noting(concurrent.futures.Executor):
  """Passes tasks on, and keeps their futures."""

  def __init__(self, executor):
    self.executor, self.futures = executor, []

  def submit(self, function, /, *args, **kwargs):
    self.futures.append(self.executor.submit(function, *args, **kwargs))
    return self.futures[-1]

  def done(self):
    return sum(future.done() for future in self.futures)


def kill_when_under_way(client, noting, victim, killed):
  """Kills the process `victim` with parts done, at work there, and to come."""
  address, pid = victim
  deadline = time.monotonic() + 120
  while time.monotonic() < deadline:
    if noting.done() and client.processing().get(address):
      os.kill(pid, signal.SIGKILL)
      killed.append(noting.done())
      return
    time.sleep(0.005)


def test_a_worker_killed_in_mid_run_loses_nothing():
  problem = large_problem()
  rows = np.random.default_rng(1).integers(0, 2, (ROWS, OPS), np.int32)
  cluster = distributed.LocalCluster(
    n_workers=2, threads_per_worker=1, dashboard_address=None
  )
  with cluster, distributed.Client(cluster) as client:
    pids = client.run(os.getpid)
    noting = Noting(client.get_executor(pure=False))
    killed = []
    killer = threading.Thread(
      target=kill_when_under_way,
      args=(client, noting, max(pids.items()), killed),
    )
    killer.start()
    evaluator = ExecutorEvaluator(Simulator(problem), noting, PARTS)
    found = evaluator.evaluate(rows)
    killer.join()
    left = set(client.run(os.getpid).values())
  assert len(killed) == 1
  assert 1 <= killed[0] < PARTS
  assert max(pids.items())[1] not in left
  assert found == Simulator(problem).evaluate(rows)
