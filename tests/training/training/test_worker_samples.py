"""Training with samples of Dask workers equals training without them."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time

import distributed
import numpy as np
import pytest

from tests.testing import train_commands
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.slow import SLOW
from tfplace import Simulator
from tfplace.learned import learner_type, sampling
from tfplace.learned.decisions import group_decisions
from tfplace.learned.gdp.sampling import GdpDraws
from tfplace.learned.ordered.sampling import OrderedDraws
from tfplace.learned.sampling import Given
from tfplace.learned.train import config
from tfplace.learned.train.changes import change_tasks
from tfplace.learned.train.tasks import make_task
from tfplace.learned.train.trainer import Trainer
from tfplace.placers import dask_workers

DRAWS = {
  "gdp": GdpDraws,
  "ordered": OrderedDraws,
  "placeto": Given,
  "rnn": Given,
  "hierarchical": Given,
}


@contextlib.contextmanager
def started_workers():
  """Starts a scheduler and two workers that nothing restarts."""
  with contextlib.ExitStack() as stack:
    cluster = stack.enter_context(
      distributed.LocalCluster(n_workers=0, dashboard_address=":0")
    )
    address = cluster.scheduler_address
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    for _ in range(2):
      process = stack.enter_context(
        subprocess.Popen(
          [*command, "--no-nanny", "--nthreads=1", "--no-dashboard"],
          env=train_commands.environment(),
          stderr=subprocess.DEVNULL,
        )
      )
      stack.callback(process.kill)
    cluster.wait_for_workers(2, timeout=60)
    yield stack.enter_context(dask_workers.opened_workers(address))


@pytest.fixture(scope="module")
def workers():
  with started_workers() as opened:
    yield opened


def trained(strategy, workers=None):
  """Returns history and weights after imitation and three iterations."""
  make = learner_type(strategy)
  small = {"units": 8}
  if strategy in ("gdp", "ordered"):
    small |= {"sage_layers": 1, "attention_layers": 1, "heads": 2}
  problem = problem_of(random_graph(6, seed=1, cpu_only=True), gpus(2, True))
  decisions, simulator = group_decisions(problem), Simulator(problem)
  if make.changes:
    task = change_tasks(decisions, simulator, workers=workers)[0]
  else:
    task = make_task(decisions, simulator, workers=workers)
  settings = config.TrainConfig(
    strategy=strategy,
    iterations=3,
    network=make.network_type(**small),
    method=make.method_of({"samples": 4}),
    imitation=config.ImitationConfig(steps=1),
  )
  run = Trainer([task], settings)
  run.run()
  return run.history, [v.numpy() for v in run.learner.policy.variables]


@functools.cache
def alone(strategy):
  return trained(strategy)


def assert_equal(found, expected):
  assert found[0] == expected[0]
  for a, b in zip(found[1], expected[1], strict=True):
    np.testing.assert_array_equal(a, b)


def fail(*_):
  raise AssertionError("the learner drew samples itself")


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("strategy", DRAWS)
def test_two_workers_draw_the_samples_of_the_learner(
  workers, monkeypatch, strategy
):
  expected = alone(strategy)
  monkeypatch.setattr(DRAWS[strategy], "run", fail)  # In this process only.
  assert_equal(trained(strategy, workers), expected)


class Killing:
  """Workers of which some are killed while samples are under way."""

  def __init__(self, opened, number):
    self._opened = opened
    self._pids = list(opened._client.run(os.getpid).values())[:number]
    self.runs = []

  @property
  def addresses(self):
    return self._opened.addresses

  def run(self, function, calls, accept):
    self.runs.append(len(calls))
    if self.runs.count(2) == 2 and self.runs[-1] == 2:  # Both know the graph.
      threading.Timer(0.01, self._kill).start()
      function = slowly
    return self._opened.run(function, calls, accept)

  def _kill(self):
    for pid in self._pids:
      os.kill(pid, signal.SIGKILL)


def slowly(*args):
  time.sleep(2.0)
  return sampling.run_part(*args)


@SLOW
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("number", [1, 2])
def test_workers_killed_in_training_change_nothing(number):
  expected = alone("ordered")
  with started_workers() as opened:
    killing = Killing(opened, number)
    found = trained("ordered", killing)
    left = len(opened.addresses)
  assert_equal(found, expected)
  assert killing.runs.count(2) >= 2
  assert left == 2 - number


def lie(draws, key, content):
  """Samples whose best one takes a microsecond, if one believes it."""
  result = sampling.run_part(draws, key, content)
  if result is None:
    return None
  step_us = result.step_us.copy()
  step_us[-1] = 1.0
  return result._replace(step_us=step_us)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("strategy", ["ordered"])
def test_samples_of_a_worker_that_lies_are_not_used(
  strategy, monkeypatch, caplog
):
  expected = alone(strategy)
  with started_workers() as opened:
    run = opened.run
    monkeypatch.setattr(
      opened, "run", lambda _, calls, accept: run(lie, calls, accept)
    )
    found = trained(strategy, opened)
  assert_equal(found, expected)
  assert "it says 1 us of a placement that takes" in caplog.text
