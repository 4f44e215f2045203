"""Placements that a policy's training found are starts of `auto`."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator, formats
from tfplace.graph.budget import Budget
from tfplace.graph.placement import Placement
from tfplace.learned import policies, policy_format
from tfplace.placers.auto import AutoPlacer


@pytest.fixture
def problem():
  return problem_of(random_graph(60, seed=3), gpus(3))


@pytest.fixture
def known(problem, tmp_path):
  """Devices of the placement that the policy of `tmp_path` comes with."""
  devices = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
  devices = devices[problem.group_of]
  folder = tmp_path / policy_format.PLACEMENTS
  folder.mkdir()
  formats.save_placement(Placement(problem, devices), folder / "mine.json")
  return devices


def renamed(problem, share):
  """The problem with new names for a share of its ops."""
  graph = problem.graph
  count = int(share * graph.num_ops)
  names = [f"new{i}" for i in range(count)] + list(graph.names[count:])
  graph = dataclasses.replace(graph, names=type(graph.names)(names))
  return dataclasses.replace(problem, graph=graph)


def test_the_trained_graph_and_its_variants_start_there(
  problem, known, tmp_path
):
  (start,) = policies.starts(str(tmp_path), problem)
  np.testing.assert_array_equal(start, known)
  variant = renamed(problem, 0.3)
  (start,) = policies.starts(str(tmp_path), variant)
  same = np.array([not name.startswith("new") for name in variant.graph.names])
  np.testing.assert_array_equal(start[same], known[same])


def test_other_graphs_and_general_policies_have_none(problem, known, tmp_path):
  assert policies.starts(str(tmp_path), renamed(problem, 0.6)).shape == (0, 60)
  file = tmp_path / policy_format.PLACEMENTS / "mine.json"
  for number in range(16):
    (file.parent / f"{number}.json").write_bytes(file.read_bytes())
  assert policies.starts(str(tmp_path), problem).shape == (0, 60)


def test_auto_begins_there(problem, known, tmp_path):
  budget = Budget(60.0, 40)
  placer = AutoPlacer(policy=str(tmp_path))
  result = placer.place(problem, Simulator(problem), budget, 0)
  (known_us,) = Simulator(problem).run(known[None]).step_time_us
  first = result.tried[0]
  assert first.strategy == "placements of the policy"
  assert first.evaluation.step_time_us <= known_us
  # The policy itself is not there, which `auto` says.
  assert str(tmp_path) in result.skipped["ordered"]


@pytest.mark.parametrize(
  ("count", "extra", "is_asked"),
  [(1, {}, False), (2, {}, True), (2, {0: {"members": ["x"]}}, False)],
)
def test_auto_asks_the_shipped_policy_for_microbatches_of_ops(
  count, extra, is_asked, problem
):
  part = np.arange(60, dtype=np.int32) % count if count > 1 else np.full(60, -1)
  graph = dataclasses.replace(
    problem.graph, microbatch=part.astype(np.int32), op_extra=extra
  )
  problem = dataclasses.replace(problem, graph=graph)
  assert graph.num_microbatches == count
  result = AutoPlacer().place(problem, Simulator(problem), Budget(60.0, 400), 0)
  assert ("ordered" in result.skipped) != is_asked
  tried = {each.strategy for each in result.tried}
  assert ("ordered" in tried) == is_asked
