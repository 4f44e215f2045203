"""A slowed worker: ratios of the rounds, and costs of equal devices."""

import numpy as np
import pytest

from benchmarks.measured import run_slowed_worker
from tests.testing import problems
from tfplace.core import Problem


def rounds():
  # The host is twice as slow in the second round, which no ratio shows.
  return {
    "one worker, fast": [100.0, 200.0],
    "one worker, slow": [200.0, 400.0],
    "equal halves": [100.0, 200.0],
    "by speed": [70.0, 130.0],
  }


def test_ratios_to_equal_halves_are_of_one_round():
  found = run_slowed_worker.summary(rounds())
  assert found["slow over fast"] == 2.0
  ratios = found["over equal halves"]
  assert ratios["by speed"] == pytest.approx([0.675, 0.65, 0.7])
  assert ratios["equal halves"] == [1.0, 1.0, 1.0]


def test_table_has_the_rounds_of_a_slowed_worker():
  row = {"microbatches": "whole", "predicted_us": 9e3, "measured_us": 8e3}
  model = {
    "rows": dict.fromkeys(rounds(), row),
    "summary": run_slowed_worker.summary(rounds()),
  }
  text = run_slowed_worker.markdown({"gpt": model})
  assert "| gpt | by speed | whole | 9 | 8 | 0.68 (0.65 to 0.70) |" in text


def test_costs_of_equal_workers_are_those_of_the_first():
  times = [{"CPU-fast": 1.0, "CPU-slow": 2.0}] * 3
  cluster = problems.cluster([np.inf] * 2, kinds=["CPU-fast", "CPU-slow"])
  problem = Problem(problems.graph(times, [(0, 1)]), cluster)
  equal = run_slowed_worker.as_equals(problem)
  assert equal.time_us.tolist() == [[1.0, 1.0]] * 3
  assert problem.time_us.tolist() == [[1.0, 2.0]] * 3
