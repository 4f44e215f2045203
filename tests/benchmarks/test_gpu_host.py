"""The benchmark of a GPU host, on workers; flags that make no sense."""

import json

import pytest

from benchmarks.gpu import host_report, run_host

SIZES = "layers=1,units=4,vocabulary=9,length=2"


def test_a_tiny_model_is_measured_beside_its_prediction(
  tmp_path, capsys, quick_links
):
  out = tmp_path / "host.json"
  with quick_links():
    code = run_host.OPTIONS.call(
      run_host.main,
      [
        *("--cluster=workers:2", "--models=nmt", f"--model_sizes={SIZES}"),
        *("--batch_size=2", "--strategies=single,cpu,m_topo", "--steps=3"),
        f"--out={out}",
      ],
    )
  said = capsys.readouterr()
  assert code == 0, said.err
  found = json.loads(out.read_text())
  names = [device["name"] for device in found["devices"]]
  assert all("task:" in name for name in names)
  assert all(device["product"] for device in found["devices"])
  rows = found["models"]["nmt"]["rows"]
  assert list(rows) == ["single", "cpu", "m_topo"]
  for row in rows.values():
    assert (
      row["predicted"]["step_time_us"] > 0 < row["measured"]["step_time_us"]
    )
    assert list(row["measured"]["peak_memory_bytes"]) == names
  # All workers are CPUs: `cpu` places as `single` does, and is run once.
  assert rows["cpu"]["same_as"] == "single"
  assert rows["m_topo"]["measured"]["bytes_moved"] > 0
  assert "m_topo" in said.out
  for suffix in (".png", ".bars.png"):
    assert out.with_suffix(suffix).stat().st_size > 0
  trace = json.loads(out.with_suffix(".nmt.trace.json").read_text())
  groups = {
    event["args"]["name"]
    for event in trace["traceEvents"]
    if event["name"] == "process_name"
  }
  assert {"devices", "measured devices"} <= groups


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--models=nosuch"], "unknown 'nosuch'; choose from inception_v3"),
    (["--models="], "--models names none"),
    (["--strategies=single,best"], "unknown 'best'; choose from single"),
    (["--logical_gpus=2", "--cluster=workers:2"], "give one of the two"),
    (["--logical_gpu_mib=10"], "needs --logical_gpus"),
    (["--logical_gpus=0"], "is not a positive integer"),
    (["--model_sizes=length"], "not of the form name=number"),
    (["--cluster=tpus"], "choose workers:N, gpus"),
    (["--out=/no/such/folder/x.json"], "does not exist"),
  ],
)
def test_bad_flags_are_one_clear_sentence(flags, message, capsys):
  assert run_host.OPTIONS.call(run_host.main, flags) == 1
  said = capsys.readouterr().err
  assert message in said
  assert len(said.strip().splitlines()) == 1


def test_logical_gpus_without_a_gpu_say_what_to_choose(monkeypatch, capsys):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  assert run_host.OPTIONS.call(run_host.main, ["--logical_gpus=2"]) == 1
  assert "no GPU that TensorFlow can use" in capsys.readouterr().err


def row(predicted_us, measured_us, same_as=None):
  return {
    "predicted": {"step_time_us": predicted_us},
    "measured": {"step_time_us": measured_us},
    "same_as": same_as,
  }


def test_fidelity_counts_each_placement_that_ran_once():
  rows = {
    "a": row(90.0, 100.0),  # 10% off
    "b": row(150.0, 100.0),  # 50% off
    "c": row(120.0, 100.0 / 0.75),  # 10% off
    "again": row(150.0, 100.0, same_as="b"),
    "failed": {
      "predicted": {"step_time_us": 1.0},
      "measured": {"error": "it died", "error_kind": "died"},
      "same_as": None,
    },
    "unplaced": {"error": "does not fit"},
  }
  found = host_report.summary({"rows": rows})
  assert found["median_error"] == pytest.approx(0.1)
  assert host_report.summary({"rows": {}}) == {}
