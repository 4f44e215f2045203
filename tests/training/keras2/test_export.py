"""An exported policy says what its network says."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import tasks_of
from tfplace.errors import TrainingError
from tfplace.learned import features, find_method, gdp, policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policy_format import INFO_FILE
from tfplace.training import export
from tfplace.training.checkpoints import restore_network
from tfplace.training.config import TrainConfig
from tfplace.training.encoder.gdp import NetworkConfig
from tfplace.training.methods import learner_type


@pytest.fixture(scope="module")
def original(policy, tmp_path_factory):
  folder = tmp_path_factory.mktemp("original") / "policy"
  export.export_policy(policy, folder)
  return folder


@pytest.fixture
def exported(original, tmp_path):
  return shutil.copytree(original, tmp_path / "policy")


def with_info(exported, change):
  info = json.loads((exported / INFO_FILE).read_text())
  change(info)
  (exported / INFO_FILE).write_text(json.dumps(info))


def test_weights_and_logits_are_the_networks_for_any_size(network, exported):
  loaded = policies.load_policy(exported)
  for num_ops, devices in [(1, 1), (7, 3), (100, 5)]:
    problem = problem_of(random_graph(num_ops, num_ops), gpus(devices))
    given = features.extract(group_decisions(problem), axes=network.config.axes)
    np.testing.assert_allclose(
      loaded.logits(given),
      network(given.tensors()).numpy(),
      rtol=1e-4,
      atol=1e-4,
    )
  sizes, weights = restore_network(exported, "gdp", NetworkConfig)
  assert sizes == network.config
  for mine, theirs in zip(network.variables, weights, strict=True):
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize(
  "told, found, at_most_40",
  [((5, None), (5, None), (5, 40)), ((), (None,), (40,))],
)
def test_a_policy_says_how_it_was_trained(exported, told, found, at_most_40):
  with_info(exported, lambda info: info.update(decisions=told))
  policy = policies.load_policy(exported)
  assert policy.decisions() == found
  assert policy.decisions(40) == at_most_40


def test_a_policy_is_replaced_and_anything_else_is_not(policy, exported):
  export.export_policy(policy, exported)
  assert [p.name for p in exported.parent.iterdir()] == ["policy"]
  other = exported.parent / "thesis"
  other.mkdir()
  (other / "chapter1.tex").write_text("")
  with pytest.raises(TrainingError, match="thesis"):
    export.export_policy(policy, other)
  assert [p.name for p in other.iterdir()] == ["chapter1.tex"]


def test_policies_of_other_strategies_or_versions_are_refused(
  exported, monkeypatch
):
  with pytest.raises(TrainingError, match="'gdp', not 'rnn'"):
    policies.load_policy(exported, "rnn")
  newer = dataclasses.replace(find_method("gdp"), version=2)
  monkeypatch.setitem(gdp.METHODS, "gdp", newer)
  with pytest.raises(TrainingError, match="features of version"):
    policies.load_policy(exported, "gdp")


def test_training_starts_from_no_other_saved_model(exported, tmp_path):
  module = tf.Module()
  module.weights = [tf.Variable(1.0)]

  @tf.function(input_signature=[])
  def logits():
    tf.io.write_file(str(tmp_path / "canary"), "bad")

  module.logits = logits
  tf.saved_model.save(module, str(exported))
  with pytest.raises(TrainingError, match="can read or write files"):
    restore_network(exported, "gdp", NetworkConfig)
  assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("strategy", ["gdp", "ordered"])
def test_the_policy_that_ships_can_be_trained_further(strategy):
  network_type = learner_type(strategy).network_type
  folder = policies.SHIPPED / strategy
  sizes, weights = restore_network(folder, strategy, network_type)
  config = TrainConfig(strategy=strategy, network=sizes)
  made = learner_type(strategy)(tasks_of(5), config)
  made.set_weights(weights)
  for mine, theirs in zip(made.policy.variables, weights, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  # It exports the weights that it began with.
  for mine, theirs in zip(made.exportable().variables, weights, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  with pytest.raises(TrainingError, match=f"has {len(weights) - 1} weights"):
    made.set_weights(weights[1:])


def test_networks_of_unknown_sizes_cannot_be_trained(exported):
  with_info(exported, lambda info: info["network"].update(means=False))
  with pytest.raises(TrainingError, match="means=False"):
    restore_network(exported, "gdp", NetworkConfig)
