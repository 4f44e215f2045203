"""The shipped policy as a placer, and policies that are none."""

import numpy as np
import pytest

import tfplace
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator, errors
from tfplace.graph.budget import Budget
from tfplace.learned import policies
from tfplace.learned.gdp import GdpPlacer
from tfplace.placers import get_placer

GDP = (
  '{"format": "tfplace.policy.v1", "strategy": "gdp", "features": %s,'
  ' "network": {}}'
)


def place(problem, seed=0, max_evaluations=None):
  budget = Budget(60.0, max_evaluations)
  return GdpPlacer().place(problem, Simulator(problem), budget, seed)


def test_memory_that_only_a_split_fits_in_is_respected():
  # 20 variables of 10 bytes; each of two GPUs holds 130.
  ops = [
    tfplace.OpSpec(f"op{i}", "Relu", {"GPU": 5.0}, [1], 10.0) for i in range(20)
  ]
  graph = tfplace.build_graph("g", ops, [(i, 0, i + 1) for i in range(19)])
  problem = problem_of(graph, gpus(2, memory_bytes=130.0))
  result = place(problem, max_evaluations=30)
  assert result.evaluations == 30
  assert result.evaluation.feasible
  assert 8 <= result.placement.devices.sum() <= 12


@pytest.mark.parametrize("strategy", ["gdp", "ordered"])
def test_a_shipped_policy_places(strategy):
  problem = problem_of(random_graph(40, 7, cpu_only=True), gpus(3, cpu=True))
  budget = Budget(60.0, max_evaluations=150)
  results = [
    get_placer(strategy).place(problem, Simulator(problem), budget, seed)
    for seed in (0, 0, 1)
  ]
  for result in results:
    devices = result.placement.devices
    assert result.strategy == strategy and result.evaluation.feasible
    assert problem.allowed[np.arange(40), devices].all()
    assert 0 < result.evaluations <= 150
  same, again, _ = (r.placement.devices.tolist() for r in results)
  assert same == again


@pytest.mark.parametrize(
  "content, words",
  [
    (None, "no policy.json"),
    ("{", "not JSON at line 1"),
    ('{"format": "x"}', "'x'"),
    ('{"format": "tfplace.policy.v1", "strategy": "rnn"}', "'rnn', not 'gdp'"),
    (GDP % "-1", "version -1"),
    (GDP % "%d", "cannot be loaded"),
  ],
)
def test_a_directory_without_a_usable_policy_is_refused(
  tmp_path, content, words
):
  if content is not None:
    from tfplace.learned import features

    content = content.replace("%d", str(features.VERSION))
    (tmp_path / "policy.json").write_text(content)
  with pytest.raises(errors.TrainingError, match=words) as caught:
    policies.load_policy(tmp_path)
  assert str(tmp_path) in str(caught.value)
