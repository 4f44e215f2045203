"""Models of honest people: what they need to be loaded is left to them."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.extraction.functions import trace_saved_model


def _keras_lookup(tmp_path, folder):
  words = tmp_path / "words.txt"
  words.write_text("a\nb\nc\n")
  inputs = keras.Input((1,), dtype="string")
  tokens = keras.layers.StringLookup(vocabulary=str(tmp_path / "words.txt"))(
    inputs
  )
  keras.Model(inputs, keras.layers.Embedding(8, 4)(tokens)).export(
    folder, verbose=False
  )


def _mutable_table(tmp_path, folder):
  module = tf.Module()  # its table is restored by functions of the model
  module.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
  module.table.insert(["a"], [1])

  @tf.function(input_signature=[tf.TensorSpec([2], tf.string)])
  def find(words):
    return {"found": module.table.lookup(words)}

  module.find = find
  tf.saved_model.save(module, folder, signatures=find)


def _custom_gradient(tmp_path, folder):
  @tf.custom_gradient
  def triple(x):
    return 3 * x, lambda dy: 3 * dy

  module = tf.Module()
  module.scale = tf.Variable(2.0)

  @tf.function(input_signature=[tf.TensorSpec([2])])
  def scaled(x):
    return {"y": triple(x) * module.scale}

  module.scaled = scaled
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  tf.saved_model.save(module, folder, signatures=scaled, options=options)


def _trained(tmp_path, folder):
  model = keras.Sequential(
    [keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)]
  )
  model.compile("adam", "mse")
  model.fit(np.zeros((2, 5, 3)), np.zeros((2, 1)), verbose=0)
  tf.saved_model.save(model, folder)


def _without_objects(tmp_path, folder):
  _trained(tmp_path, folder)  # then TensorFlow loads the flat graph
  path = os.path.join(folder, "saved_model.pb")
  with open(path, "rb") as file:
    content = saved_model_pb2.SavedModel.FromString(file.read())
  content.meta_graphs[0].ClearField("object_graph_def")
  with open(path, "wb") as file:
    file.write(content.SerializeToString())


MODELS = {
  "table with a saver": _mutable_table,
  "custom gradient": _custom_gradient,
  "trained": _trained,
}


@pytest.mark.parametrize("model", MODELS)
def test_an_honest_model_loads_with_its_values(tmp_path, model):
  folder = str(tmp_path / "model")
  MODELS[model](tmp_path, folder)
  strict = trace_saved_model(folder, batch_size=2)
  free = trace_saved_model(folder, batch_size=2, allow_side_effects=True)
  assert [n.op for n in strict.graph_def.node] == [
    n.op for n in free.graph_def.node
  ]
  values = [[v.value for v in t.variables.values()] for t in (strict, free)]
  for mine, theirs in zip(*values, strict=True):
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("allow_side_effects", [False, True])
def test_models_of_tensorflow_1_are_refused(tmp_path, allow_side_effects):
  folder = str(tmp_path / "model")
  _without_objects(tmp_path, folder)
  with pytest.raises(ExtractionError, match="1: load it there and write"):
    trace_saved_model(folder, allow_side_effects=allow_side_effects)


def test_a_model_that_reads_its_vocabulary_needs_trust(tmp_path):
  folder = str(tmp_path / "model")
  _keras_lookup(tmp_path, folder)
  with pytest.raises(ExtractionError, match="can read or write files; --allow"):
    trace_saved_model(folder)
  traced = trace_saved_model(folder, allow_side_effects=True)
  assert "LookupTableFindV2" in {node.op for node in traced.graph_def.node}


def test_nothing_of_the_copy_stays(tmp_path, monkeypatch):
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
  (tmp_path / "tmp").mkdir()
  _mutable_table(tmp_path, str(tmp_path / "model"))
  trace_saved_model(tmp_path / "model")
  assert not list((tmp_path / "tmp").iterdir())


def test_several_graphs_are_refused_by_number(tmp_path):
  _custom_gradient(tmp_path, str(tmp_path))
  path = tmp_path / "saved_model.pb"
  content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
  content.meta_graphs.append(content.meta_graphs[0])
  path.write_bytes(content.SerializeToString())
  with pytest.raises(ExtractionError, match="has 2 MetaGraphs"):
    trace_saved_model(tmp_path)


def test_errors_name_the_model_and_not_its_copy(tmp_path):
  _trained(tmp_path, str(tmp_path / "model"))
  index = tmp_path / "model" / "variables" / "variables.index"
  index.write_bytes(b"")
  with pytest.raises(ExtractionError, match="cannot be loaded") as caught:
    trace_saved_model(tmp_path / "model")
  assert "tfplace-" not in str(caught.value).replace(str(tmp_path), "")
