"""`auto` beside placements by hand: a tiny model's row, and the tables."""

import json

import keras
import pytest

from benchmarks import models, run_auto


def tiny():
  model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(4)]
  )
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("sgd", loss, jit_compile=False)
  return model


@pytest.fixture
def run(monkeypatch, tmp_path):
  monkeypatch.setitem(models.MODELS, "tiny", models.Trained(tiny, 8))

  def call(*flags):
    return run_auto.OPTIONS.call(
      run_auto.main,
      [
        "--models=tiny",
        "--clusters=v100x2+p100x2,v100x1-4GiB",
        "--microbatches=1,2",
        "--budget_s=1",
        f"--out={tmp_path / 'rows.json'}",
        f"--graph_cache_dir={tmp_path}",
        *flags,
      ],
    )

  return call


def test_a_row_has_every_column(run, tmp_path, capsys):
  assert run() == 0
  rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
  row = rows["tiny/v100x2+p100x2"]
  # Tiny ops take their launches: the fastest is to stay on one V100.
  assert row["one device"]["main_kind"] == "GPU-v100"
  assert row["by hand"]["devices"] == "2 GPU-v100"
  # By rank it may be faster.
  assert row["by hand"]["step_time_us"] <= row["one device"]["step_time_us"]
  assert row["auto"]["step_time_us"] <= row["by hand"]["step_time_us"]
  assert row["data parallel"]["microbatches"] in ("2", "3, 3, 1, 1")
  assert rows["tiny/v100x1-4GiB"]["by hand"]["devices"] == "1 GPU"
  assert "| `v100x1-4GiB` |" in capsys.readouterr().out


def test_gains_are_over_the_best_by_hand():
  def us(value, **more):
    return {"step_time_us": value, **more}

  fast = {
    "one device": us(8e3),
    "unsplit": us(5e3),
    "by hand": us(4e3),
    "data parallel": us(3e3),
    "auto": us(1e3, microbatches=2, microbatch_sizes=[6, 2]),
  }
  large = {**fast, "one device": {"oom": "too large"}, "by hand": {"oom": ""}}
  large["data parallel"] = us(12e3)
  rows = {"bert_base/k80x2": fast, "other/k80x2": large}
  rows["bert_base/v100x4"] = {**fast, "auto": us(1e3, microbatches=4)}
  found = {"stamp": {"budget_s": 1.0}, "rows": rows}
  for row in rows.values():
    row["commit"] = "abc"
  tables = run_auto.tables(found)
  # 8 where it fits; sqrt(5 * 5); sqrt(3 * 12) = 6, with 3 as the least.
  assert (
    "| `k80x2` | 8.00 (8.00) | 5.00 (5.00) | 6.00 (3.00) |"
    in (tables["auto_clusters"])
  )
