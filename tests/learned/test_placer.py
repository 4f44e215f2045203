"""The shipped policy as a placer, and policies that are none."""

import pytest

import tfplace
from tests.testing.policy_problems import gpus, problem_of
from tfplace.errors import TrainingError
from tfplace.graph.budget import Budget
from tfplace.learned import features, policies
from tfplace.learned.gdp import GdpPlacer

GDP = (
  '{"format": "tfplace.policy.v1", "strategy": "gdp", "features": %s,'
  ' "network": {}}'
)


def test_memory_that_only_a_split_fits_in_is_respected():
  # 20 variables of 10 bytes; each of two GPUs holds 130.
  ops = [
    tfplace.OpSpec(f"op{i}", "Relu", {"GPU": 5.0}, [1], 10.0) for i in range(20)
  ]
  graph = tfplace.build_graph("g", ops, [(i, 0, i + 1) for i in range(19)])
  problem = problem_of(graph, gpus(2, memory_bytes=130.0))
  simulator, budget = tfplace.Simulator(problem), Budget(60.0, 30)
  result = GdpPlacer().place(problem, simulator, budget, 0)
  assert result.evaluations == 30
  assert result.evaluation.feasible
  assert 8 <= result.placement.devices.sum() <= 12


@pytest.mark.parametrize(
  "content, words",
  [
    (None, "no policy.json"),
    ('{"format": "tfplace.policy.v1", "strategy": "rnn"}', "'rnn', not 'gdp'"),
    (GDP % -1, "version -1"),
    (GDP % features.VERSION, "cannot be loaded"),
  ],
)
def test_a_directory_without_a_usable_policy_is_refused(
  tmp_path, content, words
):
  if content is not None:
    (tmp_path / "policy.json").write_text(content)
  with pytest.raises(TrainingError, match=words) as caught:
    policies.load_policy(tmp_path)
  assert str(tmp_path) in str(caught.value)
