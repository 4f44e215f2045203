"""`--import`: files of models with classes and functions of a user's own."""

import sys

import keras
import pytest

from tfplace.bin import extract

_MODULE = """
import keras


class Doubling(keras.layers.Layer):
  def call(self, x):
    return x + x


@keras.saving.register_keras_serializable('own')
class Halving(keras.layers.Layer):
  def call(self, x):
    return x / 2.0


def own_loss(y_true, y_pred):
  return keras.ops.mean((y_true - y_pred) ** 2)
"""


def _forget():
  sys.modules.pop("own_parts", None)
  keras.saving.get_custom_objects().pop("own>Halving", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A model file of classes that this process has forgotten."""
  folder = tmp_path_factory.mktemp("own")
  (folder / "own_parts.py").write_text(_MODULE)
  (folder / "broken.py").write_text("raise ValueError('not today')")
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    import own_parts

    inputs = keras.Input((4,))
    x = own_parts.Halving()(own_parts.Doubling()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    model.compile("sgd", own_parts.own_loss, jit_compile=False)
    model.save(folder / "own.keras")
  _forget()
  return folder


@pytest.fixture(name="run")
def _run(folder, monkeypatch, capsys):
  def run(flag):
    monkeypatch.chdir(folder)
    source = ["--keras_model=own.keras", "--cluster=v100x2"]
    code = extract.run([*source, "--output=g.json", flag])
    return code, capsys.readouterr().err

  yield run
  _forget()


def test_classes_of_the_named_module_are_known(folder, run):
  assert run("--import=own_parts") == (0, "")
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
def test_what_cannot_be_known_is_one_line(run, flag, said):
  code, error = run(flag)
  assert code == 1
  assert said in error
  assert len(error.splitlines()) == 1
