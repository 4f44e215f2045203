"""An exported policy says what its network says."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from placeto_testing import tasks_of
from policies_testing import gpus, problem_of, random_graph
from sequence_testing import chains_task, config_of

from tfplace.errors import TrainingError
from tfplace.learned import export, exported
from tfplace.learned.decisions import group_decisions
from tfplace.learned.gdp import features
from tfplace.learned.gdp.export import exportable
from tfplace.learned.gdp.network import NetworkConfig, PlacementNetwork
from tfplace.learned.placeto.learner import PlacetoLearner
from tfplace.learned.placeto.network import PlacetoNetworkConfig
from tfplace.learned.train import strategies
from tfplace.learned.train.config import TrainConfig

SMALL = NetworkConfig(units=16, type_units=4, segment=8, pair_units=8)


def extracted(num_ops, devices):
  problem = problem_of(random_graph(num_ops, num_ops), gpus(devices))
  return features.extract(group_decisions(problem), axes=SMALL.axes)


@pytest.fixture
def network():
  result = PlacementNetwork(SMALL)
  result(extracted(5, 2).tensors())
  return result


def test_logits_are_the_networks_for_any_size(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  policy = exported.load_policy(tmp_path / "policy")
  for num_ops, devices in [(1, 1), (7, 3), (100, 5)]:
    given = extracted(num_ops, devices)
    np.testing.assert_allclose(
      policy.logits(given),
      network(given.tensors()).numpy(),
      rtol=1e-4,
      atol=1e-4,
    )


def test_weights_and_sizes_come_back(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  sizes, weights = export.restore_network(
    tmp_path / "policy", "gdp", features.VERSION
  )
  assert NetworkConfig(**sizes) == SMALL
  for mine, theirs in zip(network.variables, weights, strict=True):
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_a_policy_says_how_it_was_trained(network, tmp_path):
  trained = dataclasses.replace(
    exportable(network), decisions=(5, None), hints=(True, False)
  )
  export.export_policy(trained, tmp_path / "policy")
  policy = exported.load_policy(tmp_path / "policy")
  assert policy.decisions() == (5, None) and policy.decisions(40) == (5, 40)
  assert policy.hints == (False, True)


def test_a_policy_that_does_not_say_how_it_was_trained(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  path = tmp_path / "policy" / exported.INFO_FILE
  info = json.loads(path.read_text())
  del info["decisions"], info["hints"]
  path.write_text(json.dumps(info))
  policy = exported.load_policy(tmp_path / "policy")
  assert policy.decisions() == (None,) and policy.decisions(40) == (40,)
  assert policy.hints == (False,)


def test_a_policy_is_replaced_and_anything_else_is_not(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  export.export_policy(exportable(network), tmp_path / "policy")
  assert [p.name for p in tmp_path.iterdir()] == ["policy"]
  other = tmp_path / "thesis"
  other.mkdir()
  (other / "chapter1.tex").write_text("")
  with pytest.raises(TrainingError, match="thesis"):
    export.export_policy(exportable(network), other)
  assert [p.name for p in other.iterdir()] == ["chapter1.tex"]


def test_a_policy_of_another_strategy_or_version_is_refused(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  with pytest.raises(TrainingError, match="'gdp', not 'rnn'"):
    exported.load_policy(tmp_path / "policy", "rnn")
  with pytest.raises(TrainingError, match="features of version"):
    exported.load_policy(tmp_path / "policy", "gdp", features.VERSION + 1)


def sequence_export_of(strategy, **sizes):
  config = config_of(strategy)
  network = dataclasses.replace(config.network, units=8, **sizes)
  config = dataclasses.replace(config, network=network)
  return strategies.learner_type(strategy)([chains_task()], config).exportable()


@pytest.mark.parametrize("sizes", [{}, {"axes": 0}, {"sage_layers": 1}])
def test_a_fresh_export_of_gdp_is_a_policy(sizes, tmp_path):
  config = dataclasses.replace(SMALL, **sizes)
  network = PlacementNetwork(config)
  decisions = group_decisions(problem_of(random_graph(5, 5), gpus(2)))
  network(features.extract(decisions, axes=config.axes).tensors())
  export.export_policy(exportable(network), tmp_path / "policy")
  assert exported.load_policy(tmp_path / "policy").weights


@pytest.mark.parametrize("strategy", ["rnn", "hierarchical"])
@pytest.mark.parametrize(
  "sizes",
  [{}, {"is_bidirectional": True, "logit_bound": 5.0}, {"sees_own": False}],
)
def test_a_fresh_export_of_a_recurrent_policy_is_one(strategy, sizes, tmp_path):
  made = sequence_export_of(strategy, **sizes)
  export.export_policy(made, tmp_path / "policy")
  policy = exported.load_policy(tmp_path / "policy", strategy, made.features)
  assert len(policy.weights) == len(made.variables)


@pytest.mark.parametrize("means", [True, False])
def test_a_fresh_export_of_placeto_is_a_policy(means, tmp_path):
  config = TrainConfig(
    strategy="placeto", network=PlacetoNetworkConfig(rounds=2, means=means)
  )
  made = PlacetoLearner(tasks_of(5), config).exportable()
  export.export_policy(made, tmp_path / "policy")
  policy = exported.load_policy(tmp_path / "policy", "placeto", made.features)
  assert len(policy.weights) == len(made.variables)


def test_training_starts_from_no_other_saved_model(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  module = tf.Module()
  module.weights = [tf.Variable(1.0)]

  @tf.function(input_signature=[])
  def logits():
    tf.io.write_file(str(tmp_path / "canary"), "bad")

  module.logits = logits
  tf.saved_model.save(module, str(tmp_path / "policy"))
  with pytest.raises(TrainingError, match="it was not loaded"):
    export.restore_network(tmp_path / "policy", "gdp", features.VERSION)
  assert not (tmp_path / "canary").exists()


def test_every_strategy_has_a_learner_and_an_unknown_one_is_refused():
  wanted = {name for name in vars(strategies.Learner) if name[0] != "_"}
  assert {"imitate", "improve", "tracked", "exportable"} <= wanted
  for strategy in strategies.STRATEGIES:
    learner = strategies.learner_type(strategy)
    assert wanted <= set(dir(learner))
    assert dataclasses.is_dataclass(learner.network_type)
    assert learner.features_version >= 1
  with pytest.raises(TrainingError, match="'gpd'; choose one of gdp, placeto"):
    strategies.learner_type("gpd")
