"""Training with samples of Dask workers equals training without them."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys

import distributed
import numpy as np
import pytest

from tests.testing import train_commands
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import config_of
from tests.testing.slow import SLOW
from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.learned.sampling import WorkerSimulator
from tfplace.placers import dask_workers
from tfplace.training.targets import imitation_task
from tfplace.training.trainer import Trainer

PROBLEM = problem_of(random_graph(6, seed=1, cpu_only=True), gpus(2, True))


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


def rows_of(number):
  rng = np.random.default_rng(0)
  allowed = np.where(PROBLEM.allowed, 0.0, -9.0)
  return (allowed + rng.random((number, *allowed.shape))).argmax(-1)


def assert_equal(found, expected):
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a, b)


class OneWorker:
  """A worker in this process."""

  addresses = ("here", "there")

  def __init__(self, is_lost=False):
    self._is_lost = is_lost

  def send(self, data):
    return data

  def run(self, function, calls, accept):
    if self._is_lost:
      return [None] * len(calls)
    return [accept(function(*call), *call) for call in calls]


@pytest.mark.parametrize("is_lost", [False, True])
def test_batches_are_those_of_the_simulator(is_lost):
  rows = rows_of(7)
  found = WorkerSimulator(PROBLEM, OneWorker(is_lost)).step_times(rows)
  np.testing.assert_array_equal(found, Simulator(PROBLEM).step_times(rows))


def trained(simulator):
  """Returns history and weights after imitation and three iterations."""
  config = dataclasses.replace(config_of("rnn", samples=4), iterations=3)
  run = Trainer(
    [imitation_task(group_decisions(PROBLEM), simulator, config)], config
  )
  run.run()
  return run.history, [v.numpy() for v in run.learner.policy.variables]


@SLOW
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("is_killed", [False, True])
def test_samples_of_workers_train_alike(is_killed):
  expected = trained(Simulator(PROBLEM))
  with started_workers() as opened:
    if is_killed:
      pid = next(iter(opened._client.run(os.getpid).values()))
      os.kill(pid, signal.SIGKILL)
    found = trained(WorkerSimulator(PROBLEM, opened))
    assert len(opened.addresses) == 2 - is_killed
  assert found[0] == expected[0]
  assert_equal(found[1], expected[1])
