"""The flags --input_shapes and --sample."""

import keras
import numpy as np
import pytest
from keras import layers

from tests.testing.command_output import last_json
from tfplace.bin import estimate, extract, place
from tfplace.formats import load_graph


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
  """A model file with an input of open length."""
  tokens = keras.Input((None,), dtype="int32", name="tokens")
  x = layers.Dense(4)(layers.Embedding(5, 3)(tokens))
  model = keras.Model(tokens, layers.GlobalMaxPooling1D()(x))
  model.compile("sgd", "mse")
  path = str(tmp_path_factory.mktemp("model") / "open.keras")
  model.save(path)
  return path


def test_shapes_make_an_open_model_known(open_file, tmp_path, capsys):
  source = [f"--keras_model={open_file}", "--cluster=v100x2"]
  assert place.run([*source, "--budget_s=1"]) == 1
  error = capsys.readouterr().err
  assert "--input_shapes=tokens:32x128" in error
  shapes = "--input_shapes=tokens:16x9"
  assert place.run([*source, shapes, "--budget_s=1"]) == 0
  assert "Planned in " in (out := capsys.readouterr().out)
  assert "(extraction " in out  # The extraction took time, not only the search.
  assert estimate.run([*source, shapes, "--json"]) == 0
  assert last_json(capsys)["batch_size"] == 16
  np.savez(tmp_path / "batch.npz", x=np.zeros((16, 9), np.int32))
  out, sample = str(tmp_path / "g.json"), f"--sample={tmp_path / 'batch.npz'}"
  assert extract.run([*source, sample, f"--output={out}"]) == 0
  with_file = load_graph(out)
  assert extract.run([*source, shapes, f"--output={out}"]) == 0
  assert load_graph(out).names == with_file.names
  # Another length is another graph, though the file is the same.
  longer = "--input_shapes=16x18"
  assert extract.run([*source, longer, f"--output={out}"]) == 0
  assert load_graph(out).output_bytes.sum() > with_file.output_bytes.sum()


@pytest.mark.parametrize(
  ("flags", "says"),
  [
    (["--input_shapes=tokens:16x"], "'tokens:16x' is not of the form"),
    (["--input_shapes=tokens:0x9"], "is not of the form"),
    (["--input_shapes=16x9,16x9"], "the name is there twice"),
    (["--input_shapes=a:16x9,b:8x9"], "the batch size, and they differ"),
    (["--input_shapes=16x9", "--batch_size=8"], "--batch_size=8"),
    (["--input_shapes=16x9", "--sample=b.npz"], "give one"),
    (["--input_shapes=words:16x9"], "are tokens"),
    (["--sample=missing.npz"], "missing.npz' is no .npz file"),
  ],
)
def test_flags_that_mean_nothing_are_named(flags, says, open_file, capsys):
  source = [f"--keras_model={open_file}", "--cluster=v100x2"]
  assert place.run([*source, *flags]) == 1
  error = capsys.readouterr().err
  assert says in error and len(error.strip().splitlines()) == 1
