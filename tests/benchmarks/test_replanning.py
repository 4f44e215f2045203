"""Steps that have changed: what changes, and a small one placed anew."""

import json

import numpy as np
import pytest

from benchmarks.lib import saved_rows
from benchmarks.models import synthetic
from benchmarks.placement import run_replanning
from tfplace.core.presets import cluster_preset

CLUSTER = cluster_preset("v100x2")


@pytest.fixture(scope="module")
def graph():
  return synthetic.synthetic_graph(300, seed=0)


def test_a_lost_device_takes_its_links_along(graph):
  left = run_replanning.device_lost(graph, CLUSTER).cluster
  lost = {d.name for d in CLUSTER.devices} - {d.name for d in left.devices}
  assert len(lost) == 1
  assert len(left.links) < len(CLUSTER.links)
  assert not lost & {end for link in left.links for end in (link.src, link.dst)}


def test_one_link_is_slower_both_ways(graph):
  changed = run_replanning.link_slower(graph, CLUSTER).cluster.links
  slower = [
    (new.src, new.dst)
    for old, new in zip(CLUSTER.links, changed, strict=True)
    if new.bandwidth_bytes_per_us < old.bandwidth_bytes_per_us
  ]
  first, second = (device.name for device in CLUSTER.devices[:2])
  assert sorted(slower) == sorted([(first, second), (second, first)])


def test_a_doubled_batch_takes_long_ops_twice_the_time(graph):
  changed = run_replanning.batch_doubled(graph, CLUSTER).graph
  assert (changed.output_bytes == 2 * graph.output_bytes).all()
  for kind, us in graph.time_us.items():
    ratio = changed.time_us[kind][us > 0] / us[us > 0]
    assert set(np.unique(ratio)) <= {1.0, 2.0}


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the program; its exit code, and its file. It stays on all cores."""
  monkeypatch.setattr(saved_rows, "pin_to_cores", lambda count: None)
  out = tmp_path / "replanning.json"
  common = ("--on=v100x2", "--old_s=1", "--seeds=0", f"--out={out}")
  return lambda *flags: (
    run_replanning.OPTIONS.call(run_replanning.main, [*common, *flags]),
    out,
  )


def test_each_change_has_a_row_and_no_plan_is_worse_than_the_old_one(
  run, capsys
):
  flags = ("--graphs=synthetic/300", "--seconds=0.5")
  code, out = run(*flags)
  assert code == 0
  rows = json.loads(out.read_text())["rows"]
  assert list(rows) == [
    f"synthetic/300/{change}/0.5" for change in run_replanning.CHANGES
  ]
  for row in rows.values():
    assert set(row) == {"old", "policy", "nothing"}
    for arm in ("old", "policy"):
      assert row[arm][0]["step_time_us"] <= row[arm][0]["first_us"]
      assert 0 < row[arm][0]["first_s"] <= row[arm][0]["seconds"]
  # What is there is not measured again.
  before = out.read_text()
  assert run(*flags)[0] == 0
  assert out.read_text() == before
  assert len(out.with_suffix(".md").read_text().splitlines()) == 5
  # Rows of other settings are no rows of the same table.
  assert run(*flags, "--seeds=1")[0] == 1
  assert "holds rows of" in capsys.readouterr().err
  assert out.read_text() == before


@pytest.mark.parametrize("name", ["gpt_huge/8", "synthetic/many", "no.json"])
def test_an_unknown_graph_is_named(run, capsys, name):
  code, out = run(f"--graphs={name}")
  assert code == 1
  assert not out.exists()
  assert f"--graphs: {name!r} is no file, nor synthetic/OPS" in (
    capsys.readouterr().err
  )
