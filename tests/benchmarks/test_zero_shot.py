"""A policy's samples beside random ones: on a tiny row, and the table."""

import json

import numpy as np
import pytest

from benchmarks.learned import run_zero_shot, samples
from tests.testing import tiny_row
from tfplace import core
from tfplace.bounds import lower_bound
from tfplace.core.presets import cluster_preset
from tfplace.learned import policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.encoder import features
from tfplace.learned.gdp import placer
from tfplace.simulate import Simulator


def test_a_row_is_measured_at_every_size(tmp_path):
  result = tmp_path / "zero.json"
  tiny_row.run(
    "learned.run_zero_shot",
    f"--out={result}",
    f"--graph_cache_dir={tmp_path}",
  )
  (row,) = json.loads(result.read_text())["rows"].values()
  assert list(row["sizes"]) == [str(size) for size in placer.GdpPlacer.sizes]
  problem = tiny_row.problem(tmp_path)
  policy = policies.load_placers_policy("gdp", None)
  for size, found in row["sizes"].items():
    first_us = most_probable_us(problem, policy, int(size))
    assert found["first_us"] == pytest.approx(first_us, rel=1e-6)
    for arm in run_zero_shot.ARMS:
      assert found[arm] >= lower_bound(problem).us * (1 - 1e-9)
  assert "| tiny (p100x2) |" in result.with_suffix(".md").read_text()


def most_probable_us(problem, policy, size):
  """A step of each decision on the device with the highest score."""
  decisions = group_decisions(problem, size)
  scores = policy.logits(features.extract(decisions, axes=policy.axes))
  devices = decisions.to_devices(scores.argmax(axis=1))
  (evaluation,) = Simulator(problem).evaluate(devices[None])
  return evaluation.step_time_us


def test_random_samples_leave_the_cpu_to_what_runs_nowhere_else():
  ops = [
    core.OpSpec("on both", "Relu", {"GPU": 5.0, "CPU": 50.0}, [1]),
    core.OpSpec("on the CPU", "Print", {"CPU": 5.0}, [1]),
  ]
  graph = core.build_graph("g", ops, [(0, 0, 1)])
  problem = core.Problem(graph, cluster_preset("k80x2"))
  logits = samples.uniform(problem, group_decisions(problem))
  np.testing.assert_array_equal(logits > -1, [[1, 1, 0], [0, 0, 1]])


def test_the_table_has_ratios_to_the_best_one_shot_placer():
  def sizes(first, *best):
    return {
      "first_us": first,
      **dict(zip(run_zero_shot.ARMS, best, strict=True)),
    }

  tight = {
    "12": sizes(None, None, 70.0, 90.0),
    "24": sizes(None, 80.0, None, None),
  }
  loose = {"12": sizes(9.0, 5.0, 6.0, 5.0), "24": sizes(3.0, 2.0, 4.0, 4.0)}
  found = {
    "a": {"ops": 1234, "one_shot_us": 100.0, "sizes": tight},
    "b": {"ops": 5, "one_shot_us": 2.0, "sizes": loose},
  }
  *_, first, second, mean = run_zero_shot.table(found).splitlines()
  assert first == "| a | 1,234 | 0.1 | 0.800 | 0.700 | 0.900 | OOM |"
  assert second.endswith("| 1.000 | 2.000 | 2.000 | 1.500 |")
  expected = [0.8**0.5, 1.4**0.5, 1.8**0.5, 1.5]
  values = [float(cell) for cell in mean.split("|")[4:8]]
  assert values == pytest.approx(expected, abs=1e-3)
