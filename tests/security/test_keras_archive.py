"""Keras files of attackers: nothing fills the memory, runs or is read."""

import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction.safety import limits
from tfplace.variants.keras_step import trace_keras_file

GIB = 1 << 30


@pytest.fixture
def sound(tmp_path):
  model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
  model.save(tmp_path / "sound.keras")
  return tmp_path / "sound.keras"


def _rewritten(path, **contents):
  """A copy with other contents of some members, deflated."""
  target = path.with_name("bad.keras")
  with (
    zipfile.ZipFile(path) as old,
    zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new,
  ):
    for name in {*old.namelist(), *contents}:
      new.writestr(name, contents[name] if name in contents else old.read(name))
  return target


def _weights(path, write):
  """A copy with weights that a function writes."""
  file = path.with_name("weights.h5")
  with h5py.File(file, "w") as h5:
    write(h5)
  return _rewritten(path, **{"model.weights.h5": file.read_bytes()})


def _virtual(h5):
  layout = h5py.VirtualLayout((4,), "u1")
  layout[:] = h5py.VirtualSource("/etc/hostname", "x", (4,))
  h5.create_virtual_dataset(DATASET, layout)


def _linked(path):
  target = path.with_name("bad.h5")
  with h5py.File(target, "w") as h5:
    h5["model_weights"] = h5py.ExternalLink("/etc/hostname", "/")
  return target


def _garbled(path):
  target = path.with_name("bad.keras")
  target.write_bytes(path.read_bytes()[:200])
  return target


DATASET = "layers/dense/vars/0"
WEIGHTS = {  # Attack -> function that writes the weights, and the refusal.
  "shape": (
    lambda h5: h5.create_dataset(DATASET, (GIB, 8), "f4", chunks=(1024, 8)),
    "would unpack to 34359738368 bytes",
  ),
  "deflated": (
    lambda h5: h5.create_dataset(
      DATASET, data=np.zeros((100, 1 << 20), "f4"), compression="gzip"
    ),
    "would unpack to",
  ),
  "link": (
    lambda h5: h5.update({"layers": h5py.ExternalLink("/etc/hostname", "/")}),
    "'layers' lies in another file",
  ),
  "storage": (
    lambda h5: h5.create_dataset(
      DATASET, (4,), "u1", external=[("/etc/hostname", 0, 4)]
    ),
    "lies in another file",
  ),
  "virtual": (_virtual, "lies in another file"),
}
FILES = {
  "member": (
    lambda path: _rewritten(path, **{"model.weights.h5": bytes(300 << 20)}),
    "would unpack to",
  ),
  "config": (
    lambda path: _rewritten(path, **{"config.json": b" " * (200 << 20)}),
    "config.json' has 209715200 bytes",
  ),
  "link in .h5": (_linked, "lies in another file"),
  "garbled": (_garbled, "cannot be read"),
}


@pytest.mark.parametrize("attack", [*WEIGHTS, *FILES])
def test_a_file_is_judged_before_keras_reads_it(sound, monkeypatch, attack):
  write, why = (WEIGHTS | FILES)[attack]
  path = _weights(sound, write) if attack in WEIGHTS else write(sound)
  monkeypatch.setattr(keras.saving, "load_model", None)
  with pytest.raises(ExtractionError, match=why) as caught:
    trace_keras_file(path, training=False)
  assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_what_keras_writes_passes(tmp_path, suffix):
  model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(4096)])
  path = str(tmp_path / f"model{suffix}")
  model.save(path)
  limits.check_keras_file(path)
  assert trace_keras_file(path, 2, training=False).variables


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_python_code_in_a_file_is_not_run(tmp_path, suffix):
  canary = str(tmp_path / "canary")
  inputs = keras.Input((3,))
  attack = keras.layers.Lambda(lambda x: [x, open(canary, "w").close()][0])
  model = keras.Model(inputs, attack(inputs))
  path = tmp_path / f"model{suffix}"
  model.save(path)
  (tmp_path / "canary").unlink()
  with pytest.raises(ExtractionError, match="cannot be loaded"):
    trace_keras_file(path, 2, training=False)
  assert not (tmp_path / "canary").exists()


def _edited(path, edit):
  with zipfile.ZipFile(path) as archive:
    config = json.loads(archive.read("config.json"))
  edit(config)
  return _rewritten(path, **{"config.json": json.dumps(config)})


def test_a_vocabulary_outside_of_the_file_is_not_read(tmp_path):
  secret = tmp_path / "secret"
  secret.write_text("a\nb\n")
  inputs = keras.Input((1,), dtype="string")
  layer = keras.layers.StringLookup(vocabulary=["x"])
  keras.Model(inputs, layer(inputs)).save(tmp_path / "sound.keras")

  def point(config):
    (lookup,) = [
      c for c in config["config"]["layers"] if c["class_name"] == "StringLookup"
    ]
    lookup["config"]["vocabulary"] = str(secret)

  path = _edited(tmp_path / "sound.keras", point)
  with pytest.raises(ExtractionError, match="cannot be loaded"):
    trace_keras_file(path, 2, training=False)


def test_a_saved_model_outside_of_the_file_is_not_loaded(tmp_path):
  canary = tmp_path / "canary"
  module = tf.Module()

  @tf.function(input_signature=[tf.TensorSpec([None, 3])])
  def serve(x):
    tf.io.write_file(str(canary), "bad")
    return x

  module.serve = serve
  tf.saved_model.save(module, str(tmp_path / "other"), signatures=serve)
  layer = keras.layers.TFSMLayer(
    str(tmp_path / "other"), call_endpoint="serving_default"
  )
  inputs = keras.Input((3,))
  keras.Model(inputs, layer(inputs)).save(tmp_path / "bad.keras")
  canary.unlink(missing_ok=True)
  with pytest.raises(ExtractionError, match="cannot be loaded"):
    trace_keras_file(tmp_path / "bad.keras", 2, training=False)
  assert not canary.exists()


@pytest.mark.parametrize(
  "function",
  [
    ("builtins", "exec"),
    ("os", "system"),
    ("keras.config", "enable_unsafe_deserialization"),
    ("keras.utils", "get_file"),
  ],
)
def test_a_function_that_a_file_names_is_not_called(sound, function):
  module, name = function

  def call(config):
    config["config"]["layers"][-1] = {
      "module": module,
      "class_name": name,
      "config": {},
      "registered_name": None,
    }

  with pytest.raises(ExtractionError, match="cannot be loaded"):
    trace_keras_file(_edited(sound, call), 2, training=False)
