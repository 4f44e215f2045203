"""Only what tfplace exports is a policy: anything else is not even loaded."""

import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import TrainingError
from tfplace.learned import policies
from tfplace.learned.policy_format import INFO_FILE

SHIPPED = sorted(p.name for p in policies.SHIPPED.iterdir())
tf1 = tf.compat.v1


@pytest.mark.parametrize("strategy", SHIPPED)
def test_a_shipped_policy_is_one(strategy):
  folder = policies.SHIPPED / strategy
  policy = policies.load_policy(folder, strategy)
  assert len(policy.weights) == policy.info["weights"]


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


def _of_tensorflow_1(folder, path):
  shutil.rmtree(folder / "variables")
  (folder / "saved_model.pb").unlink()
  info = (folder / INFO_FILE).read_text()
  shutil.rmtree(folder)
  with tf.Graph().as_default(), tf1.Session() as session:
    w = tf1.get_variable("w", (2,), use_resource=True)
    session.run(w.initializer)
    builder = tf1.saved_model.Builder(str(folder))
    save = tf.raw_ops.Save(filename=str(path), tensor_names=["x"], data=[1.0])
    builder.add_meta_graph_and_variables(session, ["serve"], main_op=save)
    builder.save()
  (folder / INFO_FILE).write_text(info)


def _edit(folder, edit):
  file = folder / "saved_model.pb"
  content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  edit(content.meta_graphs[0])
  file.write_bytes(content.SerializeToString())


def _with_op(op):
  def attack(folder, path):
    def add(meta_graph):
      function = meta_graph.graph_def.library.function[0]
      function.node_def.add(name="bad", op=op)
      meta_graph.object_graph_def.concrete_functions[function.signature.name]

    _edit(folder, add)

  return attack


def _edited(change):
  """An attack that changes the objects of the model."""

  def attack(folder, path):
    def edit(meta_graph):
      change(meta_graph.object_graph_def.nodes)

    _edit(folder, edit)

  return attack


def _with_argument(folder, path):
  def rename(meta_graph):
    for function in meta_graph.graph_def.library.function:
      function.signature.input_arg[0].name = "other"

  _edit(folder, rename)


def _with_restore_function(nodes):
  nodes[0].saveable_objects["x"].restore_function = 1


def _with_class(nodes):
  nodes[0].user_object.identifier = "optimizer"


OPS = ("WriteFile", "ReadFile", "PyFunc", "Save", "Abort", "RestoreV2", "Print")
ATTACKS = {
  "another model": _another_model,
  "of TensorFlow 1": _of_tensorflow_1,
  "arguments": _with_argument,
  "child": _edited(lambda n: n[0].children.add(local_name="more", node_id=1)),
  "resource": _edited(lambda nodes: nodes.add().resource.SetInParent()),
  "asset": _edited(lambda nodes: nodes.add().asset.SetInParent()),
  "restore function": _edited(_with_restore_function),
  "class": _edited(_with_class),
  **{op: _with_op(op) for op in OPS},
}


@pytest.fixture
def policy(tmp_path):
  folder = tmp_path / "policy"
  shutil.copytree(policies.SHIPPED / "gdp", folder)
  return folder


@pytest.mark.parametrize("attack", ATTACKS)
def test_anything_else_is_refused_before_it_is_loaded(
  policy, tmp_path, monkeypatch, attack
):
  canary = tmp_path / "canary"
  ATTACKS[attack](policy, canary)
  canary.unlink(missing_ok=True)
  monkeypatch.setattr(tf.saved_model, "load", None)
  with pytest.raises(TrainingError, match="no policy of strategy 'gdp'"):
    policies.load_policy(policy)
  assert not canary.exists()


def test_a_policy_of_another_strategy_is_none(policy):
  shutil.copytree(policies.SHIPPED / "ordered", policy, dirs_exist_ok=True)
  gdp = policies.SHIPPED / "gdp" / INFO_FILE
  shutil.copy(gdp, policy / INFO_FILE)
  with pytest.raises(TrainingError, match="it has"):
    policies.load_policy(policy)
