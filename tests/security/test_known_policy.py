"""Policies of attackers: none has side effects."""

import shutil

import pytest
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned import policies
from tfplace.learned.policy_format import INFO_FILE


class _Written(tf.Module):
  """Has the names of a policy, and writes a file."""

  def __init__(self, path):
    super().__init__()
    self.weights = [tf.Variable([1.0])]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "node")])
    def logits(node):
      tf.io.write_file(str(path), "bad")
      return node * self.weights[0]

    self.logits = logits


def _another_model(folder, path):
  shutil.rmtree(folder / "variables")
  tf.saved_model.save(_Written(path), str(folder))


@pytest.fixture
def policy(tmp_path):
  folder = tmp_path / "policy"
  shutil.copytree(policies.SHIPPED / "gdp", folder)
  return folder


def test_a_policy_that_writes_is_refused_before_it_is_loaded(
  policy, tmp_path, monkeypatch
):
  canary = tmp_path / "canary"
  _another_model(policy, canary)
  canary.unlink(missing_ok=True)
  monkeypatch.setattr(tf.saved_model, "load", None)
  with pytest.raises(TrainingError, match="WriteFile"):
    policies.load_policy(policy)
  assert not canary.exists()


def test_a_policy_of_another_strategy_is_none(policy):
  shutil.copytree(policies.SHIPPED / "ordered", policy, dirs_exist_ok=True)
  gdp = policies.SHIPPED / "gdp" / INFO_FILE
  shutil.copy(gdp, policy / INFO_FILE)
  with pytest.raises(TrainingError, match="does not run"):
    policies.load_policy(policy).run("logits", [])
