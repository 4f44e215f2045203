"""SavedModels with a placement in them, loaded by TensorFlow alone."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.testing import placed_models as at
from tfplace.bin import place
from tfplace.errors import ApplyError
from tfplace.extraction.functions import trace_saved_model
from tfplace.formats import results, save_cluster
from tfplace.graph import Placement
from tfplace.keras import write_placed_saved_model

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))
HEEDING = tf.saved_model.LoadOptions(
  experimental_variable_policy="save_variable_devices"
)


def _export(kind, folder):
  keras.utils.set_random_seed(5)
  model = at.build(kind, compiled=False)
  model.export(folder / "in", verbose=False)
  return folder / "in"


def _place(source, seed=1, **options):
  """Writes a random placement beside `source`; returns it and the place."""
  traced = trace_saved_model(source, **options)
  placement = at.random_placement(traced, seed)
  output = source.parent / "out"
  write_placed_saved_model(source, placement, output, **options)
  return placement, output


def _serve(path, values, options=None):
  """Outputs of a loaded model, what ran, and the model."""
  loaded = tf.saved_model.load(str(path), options=options)
  function = loaded.signatures["serving_default"]
  names = sorted(function.structured_input_signature[1])
  with at.recorded(at_least=5) as ran:
    outputs = function(**dict(zip(names, values, strict=True)))
  return {k: v.numpy() for k, v in outputs.items()}, ran, loaded


def _inputs(kind):
  x = at.batch(kind)[0]
  return [tf.constant(part) for part in (x if isinstance(x, list) else [x])]


@pytest.mark.parametrize("kind", ["two_inputs", "lstm"])
def test_it_serves_the_same_outputs_on_the_planned_devices(kind, tmp_path):
  source = _export(kind, tmp_path)
  placement, output = _place(source)
  expected, _, _ = _serve(source, _inputs(kind))
  got, ran, loaded = _serve(output, _inputs(kind), HEEDING)
  for key, value in expected.items():
    np.testing.assert_allclose(got[key], value, atol=1e-6)
  same = at.planned_ops(ran, placement)
  assert len(same) > 0.2 * placement.problem.graph.num_ops
  for node, planned in same:
    assert node.device == planned, node
  assert {node.device for node in ran} == {"CPU:0", "CPU:1", "CPU:2"}
  assert len({v.device for v in loaded.variables}) > 1
  if kind != "two_inputs":
    return
  # Without options, only reads of variables are elsewhere.
  got, ran, loaded = _serve(output, _inputs(kind))
  for key, value in expected.items():
    np.testing.assert_allclose(got[key], value, atol=1e-6)
  assert {v.device for v in loaded.variables} == {CPUS[0]}
  for node, planned in at.planned_ops(ran, placement):
    assert node.device == planned or node.type == "ReadVariableOp", node


class Words(tf.Module):
  """A table that is read from an asset, a variable and two signatures."""

  def __init__(self, path):
    super().__init__()
    source = tf.lookup.TextFileInitializer(
      path, tf.string, 0, tf.int64, 1, delimiter=" "
    )
    self.table = tf.lookup.StaticHashTable(source, -1)
    self.rows = tf.Variable(np.eye(4, dtype="float32"), name="rows")

  @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
  def embed(self, words):
    rows = tf.gather(self.rows, self.table.lookup(words) % 4)
    return {"y": tf.linalg.matmul(rows, self.rows) + 1.0}

  @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
  def twice(self, words):
    return {"y": 2.0 * self.embed(words)["y"]}


def test_variables_assets_and_the_other_signatures_are_kept(tmp_path):
  (tmp_path / "words.txt").write_text("a 0\nb 1\nc 2\n")
  module = Words(str(tmp_path / "words.txt"))
  source = tmp_path / "in"
  signatures = {"serving_default": module.embed, "twice": module.twice}
  tf.saved_model.save(module, source, signatures)
  (tmp_path / "words.txt").unlink()
  _, output = _place(source, allow_side_effects=True)
  for folder in ("variables", "assets"):
    names = sorted(os.listdir(source / folder))
    assert names and sorted(os.listdir(output / folder)) == names
    for name in names:
      old = (source / folder / name).read_bytes()
      assert (output / folder / name).read_bytes() == old
  words = tf.constant(["c", "a", "unknown"])
  expected = np.eye(4)[[2, 0, 3]] + 1
  for options in (None, HEEDING):
    loaded = tf.saved_model.load(str(output), options=options)
    assert sorted(loaded.signatures) == ["serving_default", "twice"]
    twice = loaded.signatures["twice"](words=words)["y"]
    np.testing.assert_allclose(twice, 2 * expected, atol=1e-6)
    np.testing.assert_allclose(loaded.embed(words)["y"], expected, atol=1e-6)
    served = loaded.signatures["serving_default"](words=words)["y"]
    np.testing.assert_allclose(served, expected, atol=1e-6)


def _module(jit=False):
  class Module(tf.Module):
    def __init__(self):
      super().__init__()
      self.scale = tf.Variable(3.0, name="scale")

    @tf.function(jit_compile=jit or None)
    def inner(self, x):
      return tf.tanh(tf.matmul(x, x)) * self.scale

    @tf.function(input_signature=[tf.TensorSpec((4, 4))])
    def outer(self, x):
      return {"y": self.inner(self.inner(x) + 1.0)}

  return Module()


def test_a_function_called_twice_is_placed_for_each_call(tmp_path):
  module = _module()
  tf.saved_model.save(module, tmp_path / "in", module.outer)
  traced = trace_saved_model(tmp_path / "in")
  placement = at.random_placement(traced)
  names = placement.problem.graph.names
  products = [n for n in names if n.endswith("MatMul")]
  devices = placement.devices.copy()
  for name, device in zip(products, (1, 2), strict=True):
    devices[names.index(name)] = device
  placement = Placement(placement.problem, devices)
  write_placed_saved_model(tmp_path / "in", placement, tmp_path / "out")
  x = tf.constant(np.eye(4, dtype="float32") * 0.3)
  got, ran, _ = _serve(tmp_path / "out", [x], HEEDING)
  np.testing.assert_allclose(got["y"], module.outer(x)["y"], atol=1e-6)
  found = [node.device for node in ran if "MatMul" in node.type]
  assert sorted(found) == ["CPU:1", "CPU:2"]


def test_what_xla_compiles_as_one_is_not_divided(tmp_path):
  module = _module(jit=True)
  tf.saved_model.save(module, tmp_path / "in", module.outer)
  with pytest.raises(ApplyError, match="compiled by XLA"):
    _place(tmp_path / "in")
  assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
  source = _export("dense", tmp_path)

  def broken(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "rename", broken)
  with pytest.raises(ApplyError, match="No space left"):
    _place(source)
  assert sorted(os.listdir(tmp_path)) == ["in"]
  (tmp_path / "out").mkdir()
  with pytest.raises(ApplyError, match="already exists"):
    _place(source)
  assert os.listdir(tmp_path / "out") == []


def test_the_command_writes_a_model_that_serves_as_placed(tmp_path, capsys):
  source = _export("two_inputs", tmp_path)
  output, plan = tmp_path / "out", str(tmp_path / "p.json")
  save_cluster(at.linked(memory_bytes=1e9), tmp_path / "cluster.json")
  flags = [
    f"--saved_model={source}",
    f"--cluster={tmp_path / 'cluster.json'}",
    "--strategy=m_etf",
    f"--output={plan}",
    f"--output_saved_model={output}",
    "--keep_together=net_1/first_1",
    "--max_memory=CPU:2=0B",
    "--graph_cache_dir=",
  ]
  assert place.run(flags) == 0
  _, ran, _ = _serve(output, _inputs("two_inputs"), HEEDING)
  content = results.load_assignments(plan)
  assert set(content.values()) == {CPUS[0], CPUS[1]}
  assert len({d for n, d in content.items() if "first_1" in n}) == 1
  for node in ran:
    if node.type in ("MatMul", "_MklMatMul"):
      assert at.LOCAL + node.device == content[node.name]
  assert place.run(flags) == 1
  assert "is a folder" in capsys.readouterr().err
