"""`--import`: files of models with classes and functions of a user's own."""

import subprocess
import sys

import pytest

_MODULE = """
import keras


class Doubling(keras.layers.Layer):
  def call(self, x):
    return x + x


{register}
class Halving(keras.layers.Layer):
  def call(self, x):
    return x / 2.0


def own_loss(y_true, y_pred):
  return keras.ops.mean((y_true - y_pred) ** 2)
"""
_SAVE = """
import keras, own_parts
inputs = keras.Input((4,))
x = own_parts.Halving()(own_parts.Doubling()(inputs))
model = keras.Model(inputs, keras.layers.Dense(2)(x))
model.compile("sgd", own_parts.own_loss, jit_compile=False)
model.save("own.keras")
"""


def _run(folder, *arguments):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=folder,
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("own")
  register = "@keras.saving.register_keras_serializable('own')"
  (folder / "own_parts.py").write_text(_MODULE.format(register=register))
  (folder / "broken.py").write_text("raise ValueError('not today')")
  saved = _run(folder, "-c", _SAVE)
  assert saved.returncode == 0, saved.stderr
  return folder


def _extract(folder, *flags):
  return _run(
    folder,
    "-m",
    "tfplace.bin.extract",
    "--keras_model=own.keras",
    "--cluster=v100x2",
    "--output=g.json",
    *flags,
  )


def test_classes_of_the_named_module_are_known(folder):
  done = _extract(folder, "--import=own_parts")
  assert done.returncode == 0, done.stderr
  text = (folder / "g.json").read_text()
  assert "doubling" in text and "halving" in text


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--import=no_such", "--import: module 'no_such' cannot be imported"),
    ("--import=broken", "ValueError: not today"),
    ("--import=", "class 'Doubling'; name the Python module that defines it"),
    ("--import=", "with --import=own_parts"),
  ],
)
def test_what_cannot_be_known_is_one_line(folder, flag, said):
  done = _extract(folder, flag)
  assert done.returncode == 1
  assert said in done.stderr
  assert len(done.stderr.splitlines()) == 1
