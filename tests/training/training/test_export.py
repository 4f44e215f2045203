"""An exported policy says what its network says."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import tasks_of
from tfplace.errors import TrainingError
from tfplace.learned import export, find_method, gdp, learner_type, policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.encoder import features
from tfplace.learned.gdp.network import (
  NetworkConfig,
  PlacementNetwork,
  exportable,
)
from tfplace.learned.policy_format import INFO_FILE
from tfplace.learned.train.checkpoints import restore_network
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
  policy = policies.load_policy(tmp_path / "policy")
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
  sizes, weights = restore_network(tmp_path / "policy", "gdp", NetworkConfig)
  assert sizes == SMALL
  for mine, theirs in zip(network.variables, weights, strict=True):
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_a_policy_says_how_it_was_trained(network, tmp_path):
  trained = dataclasses.replace(exportable(network), decisions=(5, None))
  export.export_policy(trained, tmp_path / "policy")
  policy = policies.load_policy(tmp_path / "policy")
  assert policy.decisions() == (5, None) and policy.decisions(40) == (5, 40)


def test_a_policy_that_does_not_say_how_it_was_trained(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  path = tmp_path / "policy" / INFO_FILE
  info = json.loads(path.read_text())
  del info["decisions"]
  path.write_text(json.dumps(info))
  policy = policies.load_policy(tmp_path / "policy")
  assert policy.decisions() == (None,) and policy.decisions(40) == (40,)


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


def test_a_policy_of_another_strategy_or_version_is_refused(
  network, tmp_path, monkeypatch
):
  export.export_policy(exportable(network), tmp_path / "policy")
  with pytest.raises(TrainingError, match="'gdp', not 'rnn'"):
    policies.load_policy(tmp_path / "policy", "rnn")
  newer = dataclasses.replace(find_method("gdp"), version=2)
  monkeypatch.setitem(gdp.METHODS, "gdp", newer)
  with pytest.raises(TrainingError, match="features of version"):
    policies.load_policy(tmp_path / "policy", "gdp")


@pytest.mark.parametrize("sizes", [{}, {"axes": 0}, {"sage_layers": 1}])
def test_a_fresh_export_of_gdp_is_a_policy(sizes, tmp_path):
  config = dataclasses.replace(SMALL, **sizes)
  network = PlacementNetwork(config)
  decisions = group_decisions(problem_of(random_graph(5, 5), gpus(2)))
  network(features.extract(decisions, axes=config.axes).tensors())
  export.export_policy(exportable(network), tmp_path / "policy")
  assert policies.load_policy(tmp_path / "policy").weights


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
    restore_network(tmp_path / "policy", "gdp", NetworkConfig)
  assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("strategy", ["gdp", "ordered"])
def test_the_policy_that_ships_can_be_trained_further(strategy):
  network_type = learner_type(strategy).network_type
  folder = policies.SHIPPED / strategy
  sizes, weights = restore_network(folder, strategy, network_type)
  (task,) = tasks_of(5)
  config = TrainConfig(strategy=strategy, network=sizes)
  made = learner_type(strategy)([task], config)
  made.set_weights(weights)
  for mine, theirs in zip(made.policy.variables, weights, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  with pytest.raises(TrainingError, match=f"has {len(weights) - 1} weights"):
    made.set_weights(weights[1:])


def test_network_of_unknown_sizes_cannot_be_trained(network, tmp_path):
  export.export_policy(exportable(network), tmp_path / "policy")
  path = tmp_path / "policy" / INFO_FILE
  info = json.loads(path.read_text())
  info["network"]["means"] = False
  path.write_text(json.dumps(info))
  with pytest.raises(TrainingError, match="means=False"):
    restore_network(tmp_path / "policy", "gdp", NetworkConfig)


def test_an_unknown_strategy_is_refused():
  with pytest.raises(TrainingError, match="'gpd'; choose one of ordered, gdp"):
    learner_type("gpd")
