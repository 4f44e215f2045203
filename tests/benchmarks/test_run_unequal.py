"""Placements on unequal devices: a tiny model's row, and subsets of devices."""

import json

import keras
import pytest

from benchmarks.models import reference
from benchmarks.placement import run_unequal
from tfplace.core.presets import cluster_preset


def tiny():
  model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(4)]
  )
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("sgd", loss, jit_compile=False)
  return model


@pytest.fixture
def run(monkeypatch, tmp_path):
  trained = reference.Trained(tiny, 8, "tiny")
  monkeypatch.setitem(reference.MODELS, "tiny", trained)

  def call(*flags):
    return run_unequal.OPTIONS.call(
      run_unequal.main,
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


def test_a_row_has_every_column_and_is_kept(run, tmp_path):
  assert run() == 0
  content = json.loads((tmp_path / "rows.json").read_text())
  row = content["rows"]["tiny/v100x2+p100x2"]
  assert row["by hand"]["devices"] == "2 GPU-v100"
  assert row["auto"]["step_time_us"] <= row["by hand"]["step_time_us"]
  assert row["data parallel"]["microbatches"] in ("2", "3, 3, 1, 1")
  alone = content["rows"]["tiny/v100x1, 4 GiB"]
  assert alone["by hand"]["devices"] == "1 GPU"
  for each, times in ((row, 2), (alone, 8)):
    by_hand = (each["by hand"], each["data parallel"])
    best_us = min(found["step_time_us"] for found in by_hand)
    each["auto"]["step_time_us"] = best_us / times
  (tmp_path / "rows.json").write_text(json.dumps(content))
  assert run() == 0  # measures nothing anew
  # The mean of 2 and 8 is 4.
  text = (tmp_path / "rows.md").read_text()
  assert "geometric mean 4.00, least 2.00" in text


def test_a_cluster_that_is_unknown_is_one_line(run, capsys):
  assert run("--clusters=v100x9") == 1
  assert (
    "unknown 'v100x9'; choose from v100x2+p100x2" in capsys.readouterr().err
  )


def test_subsets_are_of_one_kind_on_all_hosts_or_one():
  cluster = cluster_preset("2*v100x2+a100x4")
  found = dict(run_unequal.equal_subsets(cluster))
  assert list(found) == ["4 GPU-v100", "2 GPU-v100", "4 GPU-a100"]
  kinds = {d.kind for d in found["2 GPU-v100"].devices}
  assert kinds == {"GPU-v100", "CPU-dgx-1"}
  assert found["4 GPU-v100"].num_devices == 6
  assert found["4 GPU-a100"].is_fully_linked


def test_clusters_have_the_memory_and_network_that_they_name():
  slow = run_unequal.CLUSTERS["2*v100x4, 10 Gb/s"]()
  assert slow.bandwidth[0, 5] == 1250.0
  assert slow.bandwidth[0, 1] == 47900.0
  small = run_unequal.CLUSTERS["k80x4, 6 GiB"]()
  assert small.memory_bytes[:4].tolist() == [6 * 2.0**30] * 4
