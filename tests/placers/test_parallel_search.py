"""Searches on Dask workers: rounds, lost workers, errors, cancellation."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tfplace
from tests.testing.dask_workers import kill_a_busy_worker, two_workers
from tfplace import placers
from tfplace.core import Placement, Problem
from tfplace.core.budget import Budget, cancelled_by
from tfplace.core.order import ORDERS
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers.parallel import rounds, tasks, workers
from tfplace.simulate import Simulator


@pytest.fixture(scope="module")
def cluster():
  with two_workers() as (address, client):
    yield address, client


@pytest.fixture(scope="module")
def problem():
  return Problem(hard_graph(200), tfplace.cluster_preset("p100x4"))


def best_here(problem, **options):
  return placers.place(problem, max_evaluations=2000, **options)


def test_result_travels_without_its_problem(problem):
  result = best_here(problem)
  content = tasks.pack_result(result, problem)
  found = tasks.unpack_result(content, problem)
  assert found.placement.problem is problem
  assert (found.placement.devices == result.placement.devices).all()
  assert [r.strategy for r in found.tried] == [r.strategy for r in result.tried]
  assert found.evaluation == result.evaluation
  # The problem alone takes more than the result of all placers with it.
  assert b"output_bytes" not in content


def test_error_travels_with_its_values(problem):
  error = InfeasibleError("too large", device="d0", num_bytes=3.0)
  content = tasks.pack_result(error, problem)
  with pytest.raises(InfeasibleError, match="too large") as raised:
    tasks.unpack_result(content, problem)
  assert raised.value.device == "d0"
  assert raised.value.num_bytes == 3.0


def test_packed_problem_has_the_same_values(problem):
  found = tasks.unpack_problem(tasks.pack_problem(problem))
  assert found.cluster.devices == problem.cluster.devices
  assert found.lower_bound_us == problem.lower_bound_us
  rows = np.zeros((1, problem.graph.num_ops), np.int32)
  assert Simulator(found).evaluate(rows) == Simulator(problem).evaluate(rows)


def test_cancelled_budget_is_over_at_once():
  event = threading.Event()
  with cancelled_by(event):
    budget = Budget(60.0)
    part = budget.fraction(0.5)
  assert not budget.is_over
  event.set()
  assert budget.is_over
  assert part.left_s == 0.0
  assert not Budget(60.0).is_over


@pytest.mark.parametrize("order", [*ORDERS, "auto"])
def test_evaluations_give_the_same_result_on_workers(cluster, problem, order):
  address, _ = cluster
  found = [
    placers.place(
      problem, dask=address, max_evaluations=4000, seed=5, order=order
    )
    for _ in range(2)
  ]
  assert (found[0].placement.devices == found[1].placement.devices).all()
  assert found[0].order == found[1].order
  result = found[0]
  simulated = Simulator(result.placement.problem).evaluate([result.placement])
  assert simulated[0].step_time_us == result.evaluation.step_time_us
  least = min(r.evaluation.step_time_us for r in result.tried)
  assert result.evaluation.step_time_us <= least
  assert result.strategy == "auto"
  assert result.evaluations <= 4000 + 100 * len(result.tried)


def test_workers_are_never_slower_than_a_start(cluster, problem):
  start = best_here(problem)
  found = placers.place(
    problem, dask=cluster[0], max_evaluations=50, init_placement=start.placement
  )
  best_us = start.evaluation.step_time_us
  assert found.evaluation.step_time_us <= best_us
  mapping = start.placement.assignments
  found = placers.place(
    problem, dask=cluster[0], max_evaluations=50, init_placement=mapping
  )
  assert found.evaluation.step_time_us <= best_us


def test_rounds_continue_from_the_best_of_all(cluster, problem):
  """The second round's tasks start from the first round's best placement."""
  with workers.opened_workers(cluster[0]) as opened:
    task = tasks.SearchTask("annealing", 60.0, 0, "arrival", None, 900)
    search = rounds.ParallelSearch(problem, task, opened, 3)
    seen = []
    begin = search._tasks

    def noted(*args):
      seen.append(begin(*args))
      return seen[-1]

    search._tasks = noted
    found = search.run()
  if not found.evaluation.is_optimal:
    assert len(seen) == len(rounds.RoundsConfig().shares)
  for tasks_of_round in seen:
    assert len({task.seed for task in tasks_of_round}) == 3
  first, *others = seen
  assert first[0].seed == 0
  assert not first[0].continues
  for later in others:
    assert all(task.continues for task in later)
    starts = [task.start for task in later]
    assert all((start == starts[0]).all() for start in starts)


def test_classical_placer_runs_here(problem):
  """No cluster is asked, so a client that fails on any use is enough."""
  task = tasks.SearchTask("metis", 5.0, 0, "arrival")
  found = rounds.place_on_workers(problem, task, None)
  expected = placers.place(problem, "metis")
  assert (found.placement.devices == expected.placement.devices).all()


def test_worker_killed_in_a_round_changes_no_result(problem):
  """Dask repeats the lost task with the same seed and evaluations."""
  options = {"max_evaluations": 200_000, "seed": 1}
  with two_workers() as (address, client):
    expected = placers.place(problem, dask=address, **options)
    killed = []
    killer = threading.Thread(
      target=lambda: killed.append(kill_a_busy_worker(client))
    )
    killer.start()
    found = placers.place(problem, dask=address, **options)
    killer.join()
  assert killed
  assert (found.placement.devices == expected.placement.devices).all()


def test_search_ends_in_time_though_a_worker_is_killed(problem):
  with two_workers(restarts=False) as (address, client):
    placers.place(problem, dask=address, max_evaluations=10)  # Compiles.
    killer = threading.Timer(1.0, kill_a_busy_worker, [client])
    killer.start()
    began = time.monotonic()
    found = placers.place(problem, dask=address, budget_s=4.0)
    took_s = time.monotonic() - began
    killer.join()
    assert len(client.processing()) == 1
  assert found.evaluation.feasible
  # Two late rounds of 2 s at most, the connection, and a busy machine.
  assert took_s < 4.0 + 20.0


def test_search_goes_on_here_without_any_worker(problem, monkeypatch):
  monkeypatch.setattr(workers, "_ALONE_S", 1.0)
  with two_workers(restarts=False) as (address, client):
    placers.place(problem, dask=address, max_evaluations=10)
    killer = threading.Timer(1.0, lambda: kill_all(client))
    killer.start()
    found = placers.place(problem, dask=address, budget_s=3.0)
    killer.join()
  assert found.evaluation.feasible


def kill_all(client):
  for pid in client.run(os.getpid).values():
    os.kill(pid, signal.SIGKILL)


def test_local_workers_end_with_the_search(problem):
  before = worker_processes()
  found = placers.place(problem, dask="local", max_evaluations=500)
  assert found.evaluation.feasible
  wait_for(lambda: worker_processes() <= before)


@pytest.mark.parametrize(
  "dask, said",
  [
    ("", "dask is ''; it must be the address"),
    (7, "dask is 7; it must be the address"),
    ("tcp://127.0.0.1:1", "no Dask scheduler answers at dask='tcp://127"),
    ("nonsense", "no Dask scheduler answers at dask='nonsense'"),
  ],
)
def test_invalid_addresses_are_named(problem, dask, said, monkeypatch):
  monkeypatch.setattr(workers, "_CONNECT_S", 1.0)
  with pytest.raises(TfplaceError, match=said):
    placers.place(problem, dask=dask)


def test_missing_dask_is_named(problem, monkeypatch):
  monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(TfplaceError, match=r"pip install 'tfplace\[dask\]'"):
    placers.place(problem, dask="local")


def test_workers_with_another_version_are_named(cluster, monkeypatch):
  monkeypatch.setattr(tfplace, "__version__", "99.0")
  with (
    pytest.raises(TfplaceError, match=r"install tfplace 99\.0, as here"),
    workers.opened_workers(cluster[0]),
  ):
    pass


def test_scheduler_without_workers_is_named(monkeypatch):
  import distributed

  monkeypatch.setattr(workers, "_START_S", 0.5)
  empty = distributed.LocalCluster(n_workers=0, dashboard_address=":0")
  with (
    empty,
    pytest.raises(TfplaceError, match="has no workers: start them"),
    workers.opened_workers(empty.scheduler_address),
  ):
    pass


def test_evaluator_and_dask_exclude_each_other(problem):
  with pytest.raises(TfplaceError, match="searches by simulation"):
    placers.place(problem, dask="local", evaluator=Simulator(problem))


def test_nothing_fits_on_workers_either(cluster):
  op = tfplace.OpSpec("a", "Op", {"GPU": 1.0}, [2.0])
  devices = (tfplace.Device("d0", "GPU", memory_bytes=1.0),)
  small = tfplace.Cluster("small", devices, ())
  problem = Problem(tfplace.build_graph("g", [op], []), small)
  with pytest.raises(InfeasibleError, match="fit"):
    placers.place(problem, dask=cluster[0])


@pytest.mark.parametrize("local", [True, False])
def test_interrupt_ends_the_search_on_workers(cluster, tmp_path, local):
  """After Ctrl-C, workers soon do other work, and local ones are gone."""
  address, client = cluster
  tfplace.save_graph(hard_graph(2000), tmp_path / "g.json")
  dask = "local" if local else address
  command = [
    *(sys.executable, "-m", "tfplace.bin.place"),
    *(f"--graph={tmp_path / 'g.json'}", "--cluster=p100x4"),
    *(f"--dask={dask}", "--budget_s=300"),
    f"--output={tmp_path / 'p.json'}",
  ]
  before = worker_processes()
  child = subprocess.Popen(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    # A background job ignores SIGINT, and so would its children.
    preexec_fn=functools.partial(  # noqa: PLW1509
      signal.signal, signal.SIGINT, signal.SIG_DFL
    ),
  )
  try:
    if local:
      wait_for(lambda: worker_processes() - before)
      started = worker_processes() - before
      time.sleep(5.0)
    else:
      wait_for(lambda: "run_search" in str(client.processing()))
      time.sleep(2.0)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
  finally:
    child.kill()
  assert child.returncode == 130, said
  assert "Traceback" not in said
  assert not (tmp_path / "p.json").exists()
  if local:
    wait_for(lambda: not worker_processes() & started)
  else:
    pids = [client.submit(os.getpid, pure=False) for _ in range(2)]
    assert all(future.result(timeout=20) for future in pids)


def hard_graph(num_ops):
  """Random ops and edges, whose search never proves an optimum."""
  rng = np.random.default_rng(0)
  ops = [
    tfplace.OpSpec(
      f"o{i}", "MatMul", {"GPU": t, "CPU": 9 * t}, [float(t) * 1e5]
    )
    for i, t in enumerate(rng.uniform(1, 90, num_ops))
  ]
  edges = sorted(
    {
      (int(rng.integers(max(0, i - 50), i)), 0, i)
      for i in range(1, num_ops)
      for _ in range(3)
    }
  )
  return tfplace.build_graph("hard", ops, edges)


def worker_processes():
  """Local Dask workers of this user that still run."""
  import psutil

  found = set()
  for process in psutil.process_iter(["pid", "cmdline", "status"]):
    line = " ".join(process.info["cmdline"] or ())
    is_over = process.info["status"] == psutil.STATUS_ZOMBIE
    if "dask spec" in line and not is_over:
      found.add(process.pid)
  return found


def wait_for(is_so, patience_s=60.0):
  deadline = time.monotonic() + patience_s
  while not is_so():
    assert time.monotonic() < deadline, "it took too long"
    time.sleep(0.05)


def test_placement_class_is_rebuilt_in_the_given_order(problem):
  ranked = problem.in_order("rank")
  devices = np.zeros(problem.graph.num_ops, np.int32)
  result = placers.place(ranked, "single")
  content = tasks.pack_result(result, problem)
  found = tasks.unpack_result(content, problem)
  assert found.order == "rank"
  assert isinstance(found.placement, Placement)
  assert found.placement.devices.shape == devices.shape
