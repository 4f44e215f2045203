"""Searches on Dask workers: safety, lost workers, errors, cancellation."""

import dataclasses
import os
import threading
import time

import numpy as np
import psutil
import pytest

from tests.testing.dask_workers import two_workers
from tests.testing.one_layer import Step
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.slow import slow_but
from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.order import ORDERS
from tfplace.placers import dask_workers
from tfplace.placers.dask_workers import opened_workers
from tfplace.plan.config import PlanConfig
from tfplace.plan.variant_search import choose_variant
from tfplace.simulate import Simulator


@pytest.fixture(scope="module")
def cluster():
  with two_workers() as (address, client):
    yield address, client


@pytest.fixture(scope="module")
def problem():
  return problem_of(random_graph(200, seed=4), gpus(4))


@pytest.mark.parametrize("order", slow_but(("auto",), [*ORDERS, "auto"]))
def test_result_is_the_best_of_the_seeds(cluster, problem, order):
  """One worker searches as this process does, the other with the next seed."""
  options = {"max_evaluations": 2000, "order": order}
  found = placers.place(problem, dask=cluster[0], seed=5, **options)
  here = [placers.place(problem, seed=seed, **options) for seed in (5, 6)]
  best = min(here, key=lambda result: result.evaluation.step_time_us)
  assert (found.placement.devices == best.placement.devices).all()
  assert found.evaluation == best.evaluation
  assert found.strategy == "auto"
  for name in ("order", "other_order_us", "evaluations", "skipped"):
    assert getattr(found, name) == getattr(best, name)
  assert [r.strategy for r in found.tried] == [r.strategy for r in best.tried]


def test_classical_placer_runs_here(problem):
  """No cluster is asked, so None is enough."""
  found = placers.place(problem, "metis", dask=dask_workers.Workers(None))
  expected = placers.place(problem, "metis")
  assert (found.placement.devices == expected.placement.devices).all()


# Answers of workers that err, to be simulated or refused.


def swear_wrong_device(content, seed):
  return "arrival", [("auto", np.full(200, 99), 1.0, 1)], {}, None


def swear_nonsense(content, seed):
  return {"step_time_us": 1.0}


def fail(content, seed):
  raise ValueError("no memory on this worker")


@pytest.mark.parametrize("answer", [swear_wrong_device, swear_nonsense, fail])
def test_wrong_answers_are_refused(
  cluster, problem, answer, monkeypatch, caplog
):
  monkeypatch.setattr(dask_workers, "_search", answer)
  with pytest.raises(TfplaceError, match="no Dask worker returned"):
    placers.place(problem, dask=cluster[0], max_evaluations=500)
  assert caplog.text.count("a task on the Dask workers is lost") == 2


def one_device(content, seed):
  return "arrival", [("auto", np.zeros(200, np.int32), 1e-3, 1)], {}, None


def test_answers_are_simulated_here(cluster, problem, monkeypatch):
  monkeypatch.setattr(dask_workers, "_search", one_device)
  found = placers.place(problem, dask=cluster[0], max_evaluations=500)
  rows = np.zeros((1, 200), np.int32)
  assert [found.evaluation] == Simulator(problem).evaluate(rows)


# The choice of a step variant.

CONFIG = PlanConfig(budget_s=3.0, chooses_microbatches=True)


@pytest.fixture(scope="module")
def workers(cluster):
  with opened_workers(cluster[0], "auto") as opened:
    yield opened


def chosen(step, workers, **changes):
  config = dataclasses.replace(CONFIG, workers=workers, **changes)
  return choose_variant(step, config)


def test_workers_split_a_step_of_much_work_as_one_process_does(workers):
  # Two devices: 1000 us whole, 502 in two parts, and no less in more of them.
  found = chosen(Step(), workers)
  assert found.choice.variant == VariantConfig(2)
  assert found.best.evaluation.step_time_us == 502.0
  assert found.best.placement.problem is found.problem


# Local workers.


def listening():
  """Ports on which this process accepts connections."""
  found = psutil.Process().net_connections("inet")
  return {each.laddr for each in found if each.status == psutil.CONN_LISTEN}


def test_local_workers_are_threads_and_open_no_port(problem):
  before, threads = listening(), threading.active_count()
  with opened_workers("local") as opened:
    assert opened.addresses
    assert listening() == before
    assert opened.run(os.getpid, [()], lambda pid: pid) == [os.getpid()]
  found = placers.place(problem, dask="local", max_evaluations=500)
  assert found.evaluation.feasible
  wait_for(lambda: threading.active_count() <= threads + 2)


# Addresses.


@pytest.mark.parametrize(
  "dask, said",
  [
    ("", "dask is ''; it must be the address"),
    (7, "dask is 7; it must be the address"),
    ("tcp://127.0.0.1:1", "no Dask worker is ready at dask='tcp://127"),
    ("nonsense", "no Dask worker is ready at dask='nonsense'"),
  ],
)
def test_invalid_addresses_are_named(problem, dask, said, monkeypatch):
  monkeypatch.setattr(dask_workers, "_ANSWER_S", 1.0)
  with pytest.raises(TfplaceError, match=said):
    placers.place(problem, dask=dask)


# Versions.


def test_workers_with_another_version_are_named(cluster, monkeypatch):
  monkeypatch.setattr(dask_workers, "VERSION", "99.0")
  with (
    pytest.raises(TfplaceError, match=r"it has tfplace .*, not 99\.0"),
    opened_workers(cluster[0]),
  ):
    pass


def wait_for(is_so, patience_s=60.0):
  deadline = time.monotonic() + patience_s
  while not is_so():
    assert time.monotonic() < deadline, "it took too long"
    time.sleep(0.05)
