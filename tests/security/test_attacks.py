"""SavedModels of attackers: each is refused, and nothing has happened.

Where reading would leave no trace, the refusal is what counts, and that the
model is not loaded at all.
"""

import os

import pytest
import tensorflow as tf

from tests.testing.hostile_models import DEEDS, export, of_two
from tfplace.errors import ExtractionError
from tfplace.extraction.functions import trace_saved_model


def pairs(*parts):
  """Pairs of a deed and a part; each deed once."""
  return [
    (deed, part)
    for i, deed in enumerate(DEEDS)
    for j, part in enumerate(parts)
    if i % len(parts) == j
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
