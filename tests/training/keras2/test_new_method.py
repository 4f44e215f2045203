"""A learned method is a placer, a learner, and a line for each."""

import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.errors import TrainingError
from tfplace.graph.budget import Budget
from tfplace.learned import policies
from tfplace.placers import registry
from tfplace.training import methods
from tfplace.training.config import TrainConfig
from tfplace.training.trainer import finish, open_trainer


@pytest.fixture
def toy(monkeypatch):
  line = registry.Strategy("toy", "tests.training.toy.placer", "learned")
  monkeypatch.setitem(registry.STRATEGIES, "toy", line)
  learner = "tests.training.toy.learner:ToyLearner"
  monkeypatch.setitem(methods.LEARNERS, "toy", learner)


@pytest.mark.usefixtures("toy", "eagerly")
def test_a_new_method_is_trained_resumed_exported_and_places(tmp_path):
  problem = problem_of(random_graph(20, seed=1), gpus(1, cpu=True))
  config = TrainConfig(
    strategy="toy",
    checkpoint_dir=str(tmp_path / "run"),
    export_dir=str(tmp_path / "policy"),
    iterations=1,
    imitation_steps=3,
    max_decisions=(8, None),
  )
  trainer = open_trainer([problem], config)
  trainer.run(until=0.0)  # The time is over.
  assert trainer.done == 0
  trainer.run()
  assert open_trainer([problem], config).done == 2 * 3 + 1
  finish(trainer)
  info = policies.load_policy(tmp_path / "policy", "toy").info
  assert info["decisions"] == [8, None]
  # The best of both sizes is kept.
  assert len(list((tmp_path / "policy" / "placements").iterdir())) == 1
  placer = registry.get_placer("toy", str(tmp_path / "policy"))
  result = placer.place(problem, Simulator(problem), Budget(9), 0)
  # A CPU takes four times as long, and one device saves all transfers.
  assert not result.placement.devices.any()
  with pytest.raises(TrainingError, match="'toy', not 'rnn'"):
    policies.load_policy(tmp_path / "policy", "rnn")
  with pytest.raises(TrainingError, match="no policy of strategy 'toy' ships"):
    registry.get_placer("toy").place(problem, Simulator(problem), Budget(9), 0)


def test_settings_are_the_strategys_unless_given():
  assert TrainConfig(strategy="ordered").elite < TrainConfig("gdp").elite == 1
  assert TrainConfig(imitation_steps=0, entropy=0.0).imitation_steps == 0
  for elite in (0.0, 1.5):
    with pytest.raises(TrainingError, match=str(elite)):
      TrainConfig(elite=elite)
  with pytest.raises(TrainingError, match="'gpd'; choose one of ordered, gdp"):
    methods.learner_type("gpd")
