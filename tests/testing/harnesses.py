"""Measurement harnesses on the tests' workers."""

import threading
import time

from tests.testing.clusters import linked
from tfplace.graph.problem import Problem
from tfplace.measure.harness import MeasurementHarness


def problem_on(workers, graph):
  """The workers with made-up links, for tests that need no times."""
  return Problem(graph, linked(workers.device_names, 1e3))


def harness_of(workers, step, **options):
  problem = problem_on(workers, step.graph)
  return MeasurementHarness(problem, step.traced, workers, **options)


def when_stepping(workers, then):
  """Calls `then` from a thread once the timed steps have begun."""

  def wait():
    while workers.stage != "the timed steps":
      time.sleep(0.01)
    time.sleep(0.05)
    then()

  thread = threading.Thread(target=wait, daemon=True)
  thread.start()
  return thread
