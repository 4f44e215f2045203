"""Policies of the literature place with the base install."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tfplace
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.train_commands import needs_extra_train
from tfplace import Simulator
from tfplace.learned.decisions import decisions_at
from tfplace.learned.sequence import placers
from tfplace.placers import Budget, get_placer

pytestmark = needs_extra_train
STRATEGIES = ("rnn", "hierarchical", "placeto")
each = pytest.mark.parametrize("strategy", STRATEGIES)
TRAIN = """
import sys
import tfplace
from tfplace.training.config import TrainConfig
from tfplace.training.trainer import finish, open_trainer
problem = tfplace.Problem(
  tfplace.load_graph(sys.argv[1] + "/g.json"),
  tfplace.load_cluster(sys.argv[1] + "/c.json"),
)
for strategy in sys.argv[2:]:
  folder = sys.argv[1] + "/" + strategy
  config = TrainConfig(
    checkpoint_dir=folder + ".c", export_dir=folder, strategy=strategy,
    iterations=0, imitation_steps=0, max_decisions=(5, 10, None),
  )
  trainer = open_trainer([problem], config)
  trainer.run()
  finish(trainer)
"""


@pytest.fixture(scope="module")
def problem():
  graph = random_graph(30, seed=6, cpu_only=True)
  return problem_of(graph, gpus(2, cpu=True))


@pytest.fixture(scope="module")
def policies(tmp_path_factory, problem):
  """A folder with untrained policies, made in a process of their own."""
  folder = tmp_path_factory.mktemp("policies")
  tfplace.save_graph(problem.graph, folder / "g.json")
  tfplace.save_cluster(problem.cluster, folder / "c.json")
  root = pathlib.Path(tfplace.__file__).parent.parent
  done = subprocess.run(
    [sys.executable, "-c", TRAIN, str(folder), *STRATEGIES],
    env={**os.environ, "PYTHONPATH": str(root), "TF_USE_LEGACY_KERAS": "1"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return folder


def place(policies, strategy, problem, evaluations=20, seed=0):
  placer = get_placer(strategy, str(policies / strategy))
  budget = Budget(60.0, evaluations)
  return placer.place(problem, Simulator(problem), budget, seed)


@each
def test_samples_follow_the_most_probable_placement(
  policies, strategy, problem, monkeypatch
):
  asked = []

  def recorded(problem, sizes):
    asked.extend(sizes)
    return decisions_at(problem, sizes)

  monkeypatch.setattr(placers, "decisions_at", recorded)
  first = place(policies, strategy, problem, 1)
  assert asked == [5, 10, None if strategy == "hierarchical" else 256]
  result = place(policies, strategy, problem, 40)
  assert (first.evaluations, result.evaluations) == (1, 40)
  assert result.strategy == strategy and result.evaluation.feasible
  assert result.history[0].step_time_us == first.evaluation.step_time_us
  assert result.evaluation.step_time_us <= first.evaluation.step_time_us
  devices = result.placement.devices
  assert problem.allowed[np.arange(30), devices].all()
  again = place(policies, strategy, problem, 40)
  assert again.placement.devices.tolist() == devices.tolist()
  # The first does not depend on the seed; the samples do.
  other = place(policies, strategy, problem, 1, seed=7).placement.devices
  assert other.tolist() == first.placement.devices.tolist()


@each
def test_a_policy_serves_other_sizes_without_keras_2(policies, strategy):
  problem = problem_of(random_graph(25, seed=1), gpus(4))
  result = place(policies, strategy, problem, 60)
  assert result.evaluation.feasible
  assert len(set(result.placement.devices.tolist())) > 1
  assert os.environ.get("TF_USE_LEGACY_KERAS") != "1"
  training = "tf_agents", "tensorflow_gnn", "tensorflow_probability", "tf_keras"
  assert not [name for name in training if name in sys.modules]
