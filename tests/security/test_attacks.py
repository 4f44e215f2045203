"""SavedModels of attackers: each is refused, and nothing has happened.

Where reading would leave no trace, the refusal is what counts, and that the
model is not loaded at all.
"""

import functools
import os

import pytest
import tensorflow as tf

from tests.testing.hostile_models import (
  DEEDS,
  edited,
  export,
  of_two,
  read_table,
  vocabulary,
  with_vocabulary,
)
from tests.testing.slow import SLOW_TESTS
from tfplace.errors import ExtractionError
from tfplace.extraction import trace_saved_model


def pairs(*parts):
  """All pairs of a deed and a part; few of them if tests must be fast."""
  return [
    (deed, part)
    for i, deed in enumerate(DEEDS)
    for j, part in enumerate(parts)
    if SLOW_TESTS or i % len(parts) == j
  ]


@pytest.mark.parametrize("deed, part", pairs("create", "initialize", "destroy"))
def test_a_resource_of_tensorflow_2_does_nothing(tmp_path, canary, part, deed):
  model = of_two(tmp_path / "model", part, lambda: DEEDS[deed](canary))
  assert canary.sings()
  with pytest.raises(ExtractionError, match="--allow_side_effects"):
    trace_saved_model(model)
  assert canary.sings()


@pytest.mark.parametrize("deed", ["write", "save", "print"])
def test_what_is_refused_is_real(tmp_path, canary, deed):
  model = of_two(tmp_path / "m", "initialize", lambda: DEEDS[deed](canary))
  trace_saved_model(model, allow_side_effects=True)
  assert not canary.sings()


def test_a_table_of_an_asset_is_read(tmp_path):
  model, _ = with_vocabulary(tmp_path)
  assert trace_saved_model(model).feeds


def test_an_asset_that_is_a_link_to_the_outside_is_refused(tmp_path, canary):
  model, asset = with_vocabulary(tmp_path)
  asset.unlink()
  asset.symlink_to(canary.file)
  with pytest.raises(ExtractionError, match=r"asset 'words.txt' lies outside"):
    trace_saved_model(model)


@pytest.mark.parametrize("relative", [True, False])
def test_an_asset_named_outside_is_refused(tmp_path, canary, relative):
  model, _ = with_vocabulary(tmp_path)
  path = str(canary.file)
  if relative:
    path = os.path.relpath(path, model / "assets")

  def rename(meta_graph):
    meta_graph.asset_file_def[0].filename = path

  with pytest.raises(ExtractionError, match="lies outside of the model's"):
    trace_saved_model(edited(model, rename))


def test_a_file_s_name_given_by_a_caller_is_no_asset(tmp_path, canary):
  # The function that reads is called twice: with an asset, and with a file.
  module = tf.Module()
  module.asset = tf.saved_model.Asset(str(vocabulary(tmp_path)))

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def read(name):
    read_table(name)
    return 1

  model = export(
    *(tmp_path / "model", module),
    good=lambda: read(module.asset.asset_path),
    bad=lambda: read(tf.constant(str(canary.file))),
  )
  with pytest.raises(ExtractionError, match="InitializeTableFromTextFileV2"):
    trace_saved_model(model)


def _constant_for_asset(meta_graph, path):
  """The object that was an asset is a constant by its registered name."""
  for name in ("", "constant"):
    node = meta_graph.graph_def.node.add(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(path))
    node.attr["dtype"].type = tf.string.as_datatype_enum
  (asset,) = [
    n
    for n in meta_graph.object_graph_def.nodes
    if n.WhichOneof("kind") == "asset"
  ]
  asset.registered_name = "tf.TrackableConstant"


def _resource_for_asset(meta_graph, path):
  """The function that reads is bound to another object."""
  objects = meta_graph.object_graph_def
  number = len(objects.nodes)
  objects.nodes.add().constant.operation = "constant"
  _constant_for_asset(meta_graph, path)
  for function in objects.concrete_functions.values():
    for i, bound in enumerate(function.bound_inputs):
      if objects.nodes[bound].registered_name == "tf.TrackableConstant":
        function.bound_inputs[i] = number


def _unbound(meta_graph, path):
  """The function that reads is said to capture nothing."""
  for function in meta_graph.object_graph_def.concrete_functions.values():
    del function.bound_inputs[:]


def _unlisted(meta_graph, path):
  """The function is not among those that capture something."""
  meta_graph.object_graph_def.concrete_functions.clear()


def _two_of_one_name(meta_graph, path):
  for function in meta_graph.graph_def.library.function:
    for node in list(function.node_def):
      if node.op == "InitializeTableFromTextFileV2":
        function.node_def.add(name=node.name, op="NoOp")


def _in_circles(meta_graph, path):
  for function in meta_graph.graph_def.library.function:
    for node in list(function.node_def):
      if node.op == "InitializeTableFromTextFileV2":
        node.input[1] = "a:output:0"
        for name, source in (("a", "b"), ("b", "a")):
          again = function.node_def.add(name=name, op="Identity")
          again.input.append(f"{source}:output:0")


@pytest.mark.parametrize(
  "attack",
  [
    *(_constant_for_asset, _resource_for_asset, _unbound, _unlisted),
    *(_two_of_one_name, _in_circles),
  ],
)
def test_an_argument_that_is_no_asset_names_no_file(tmp_path, canary, attack):
  model, _ = with_vocabulary(tmp_path)
  edit = functools.partial(attack, path=str(canary.file))
  with pytest.raises(ExtractionError, match="FromTextFileV2\\) of function"):
    trace_saved_model(edited(model, edit))


def test_a_graph_is_loaded_as_it_was_checked(tmp_path, canary, monkeypatch):
  """Another model takes the place of the good one when TensorFlow loads."""
  good = export(tmp_path / "model", tf.Module())
  bad = of_two(tmp_path / "bad", "initialize", lambda: DEEDS["write"](canary))
  load = tf.saved_model.load

  def late(folder):
    os.replace(bad / "saved_model.pb", good / "saved_model.pb")
    return load(folder)

  monkeypatch.setattr(tf.saved_model, "load", late)
  assert trace_saved_model(good).feeds
  assert canary.sings()
