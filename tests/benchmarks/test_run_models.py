"""Splits of trained models: a tiny model's row, going on, and the table."""

import json

import keras
import numpy as np
import pytest

from benchmarks.microbatches import models_report, run_models
from benchmarks.models import reference
from tfplace import placers
from tfplace.core.microbatches import WHOLE


def tiny():
  model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(4)]
  )
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("sgd", loss, jit_compile=False)
  return model


@pytest.fixture
def run(monkeypatch, tmp_path):
  monkeypatch.setitem(
    reference.MODELS, "tiny", reference.Trained(tiny, 8, "tiny")
  )

  def call(*flags):
    return run_models.OPTIONS.call(
      run_models.main,
      [
        "--models=tiny",
        "--clusters=v100x2",
        "--microbatches=1,2",
        "--budget_s=1",
        f"--out={tmp_path / 'rows.json'}",
        f"--graph_cache_dir={tmp_path}",
        *flags,
      ],
    )

  return call


def test_a_row_has_every_column_and_is_kept(run, tmp_path, capsys):
  assert run() == 0
  content = json.loads((tmp_path / "rows.json").read_text())
  row = content["rows"]["tiny/v100x2"]
  # Tiny ops take their launches: the fastest is to stay on one device.
  graphs = run_models.Graphs("tiny", ["v100x2"], str(tmp_path))
  single = placers.place(graphs.problem(WHOLE, "v100x2"), "single")
  assert row["one device"]["step_time_us"] == single.evaluation.step_time_us
  assert row["auto"]["step_time_us"] <= single.evaluation.step_time_us
  assert row["auto"]["microbatches"] == 1
  assert row["data_parallel"]["microbatches"] == 2
  assert "error" in row["hybrid"]  # needs four devices
  content["rows"]["tiny/v100x2"]["unsplit"]["step_time_us"] = 123456.0
  (tmp_path / "rows.json").write_text(json.dumps(content))
  assert run() == 0  # measures nothing anew
  assert "| 123.5 |" in (tmp_path / "rows.md").read_text()
  assert run("--budget_s=2") == 1
  assert "choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
  "flag, text",
  [
    ("--models=foo", "unknown 'foo'; choose from bert_small"),
    ("--clusters=v100", "unknown cluster preset 'v100'"),
    ("--microbatches=2", "1, the unsplit step, must be among them"),
    ("--microbatches=1,0", "'0' is no whole number of at least 1"),
    ("--budget_s=-1", "budget_s"),
  ],
)
def test_bad_flags_are_one_line(run, capsys, flag, text):
  assert run(flag) == 1
  assert text in capsys.readouterr().err


def result(us, **more):
  return {"step_time_us": us, **more}


def test_the_table_has_ratios_and_their_means():
  auto = {"microbatches": 4, "seconds": 60.0, "evaluations": 1000}
  split = {"microbatches": 4}
  fast = {
    "one device": result(4e3),
    "unsplit": result(3e3),
    "data_parallel": result(2e3, **split),
    "pipeline": result(2.5e3, **split),
    "hybrid": {"error": "four devices"},
    "auto": result(1e3, **auto),
  }
  large = {
    **fast,
    "one device": {"oom": "too large"},
    "unsplit": result(1e3),
    "data_parallel": result(0.5e3, **split),
  }
  rows = {("a", "v100x4"): fast, ("b", "v100x4"): large}
  text = models_report.markdown(rows, 60.0)
  assert (
    "| a | v100x4 | 4.0 | 3.0 | 2.0 (4) | 2.5 (4) | - | 1.0 | 4 | 60 | 1,000"
    " | 3.00 | 4.00 | 2.00 |"
  ) in text
  assert "| b | v100x4 | OOM | 1.0 |" in text
  # sqrt(3 * 1), 4 alone, and sqrt(2 * 0.5).
  assert "| 1.73 | 4.00 | 1.00 |" in text
  assert "of a row: 0.50" in text


def test_every_model_is_named_with_its_batch():
  for name, trained in reference.MODELS.items():
    if name != "tiny":
      assert f"batch {trained.batch_size} x" in trained.about


def test_a_single_expert_is_a_feed_forward_layer():
  tokens = keras.Input((12, 64))
  routed = reference._experts(tokens, 64, "a_", count=1)
  model = keras.Model(tokens, routed)
  x = np.random.default_rng(0).normal(size=(2, 12, 64)).astype("float32")
  up, down = (model.get_layer(f"a_expert0_{n}") for n in ("up", "down"))
  np.testing.assert_allclose(model(x), down(up(x)), rtol=1e-5, atol=1e-5)


def test_an_expert_drops_tokens_beyond_its_share():
  # Four experts of 2 tokens each (8 * 5 // (4 * 4)); all eight tokens are
  # alike, so that one expert gets all of them, and takes the first two.
  tokens = keras.Input((8, 64))
  model = keras.Model(tokens, reference._experts(tokens, 64, "b_", count=4))
  found = np.abs(model(np.ones((1, 8, 64), "float32"))).sum(axis=-1)
  assert (found[0, :2] > 0).all()
  assert (found[0, 2:] == 0).all()
