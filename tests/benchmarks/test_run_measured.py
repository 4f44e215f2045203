"""Measured steps: what the benchmark does before it measures."""

import pytest
import tensorflow as tf

from benchmarks import lib, run_gpu, run_measured
from tfplace.errors import MeasurementError
from tfplace.measure import cluster
from tfplace.measure.local import host


@pytest.mark.parametrize(
  ("devices", "left"), [("gpus:2", [([], "GPU")]), ("workers:2", [])]
)
def test_gpus_are_left_to_the_processes_that_measure(
  devices, left, monkeypatch
):
  seen, opened = [], []

  def failing(name):
    opened.append(name)
    raise MeasurementError("the processes start")

  monkeypatch.setattr(
    tf.config, "set_visible_devices", lambda *given: seen.append(given)
  )
  monkeypatch.setattr(cluster, "open_cluster", failing)
  argv = [f"--devices={devices}"]
  assert run_measured.OPTIONS.call(run_measured.main, argv) == 1
  assert (seen, opened) == (left, [devices])


@pytest.mark.parametrize(
  ("argv", "expected"),
  [
    (["--devices=gpus"], (5.0, 10.0, 1)),
    (["--devices=gpus:2", "--budget_s=30"], (30.0, 10.0, 1)),
    (["--devices=workers:2"], (30.0, 60.0, 3)),
  ],
)
def test_searches_are_short_on_gpus(argv, expected):
  seen = []

  def main(values):
    run_measured.shorten(values)
    seen.append((values.budget_s, values.measure_s, values.rounds))

  assert run_measured.OPTIONS.call(main, argv) == 0
  assert seen == [expected]


@pytest.mark.parametrize("benchmark", [run_gpu, run_measured])
def test_without_cuda_it_says_what_is_missing_and_stops(
  benchmark, monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
  monkeypatch.setattr(lib, "Rows", None)  # Nothing is measured.
  monkeypatch.setattr(host, "_DRIVERS", (__file__,))
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  out = tmp_path / "gpu_host.json"
  argv = [f"--out={out}"]
  argv += ["--devices=gpus"] if benchmark is run_measured else []
  assert benchmark.OPTIONS.call(benchmark.main, argv) == 1
  assert "pip install 'tfplace[gpu]'" in capsys.readouterr().err
  assert not out.exists()


def test_losses_that_differ_are_shown():
  steps = {
    "one device": {"measured_us": 2e3, "losses": [4.0, 2.0]},
    "auto": {"measured_us": 1e3, "predicted_us": 1e3, "losses": [4.0, 1.98]},
    "tf.distribute": {"error": "it has no losses"},
  }
  found = {"rows": {"net": {"steps": steps, "commit": "c"}}, "stamp": {}}
  shown = run_measured.tables(found)["measured"]
  (line,) = [line for line in shown.splitlines() if line.startswith("| net")]
  assert line.split("|")[-2].strip() == "1e-02"  # 0.02 of 2.


def test_times_of_kernels_are_told_by_class_and_type():
  types = {
    "MatMul": [2, 1e3, 2e3],
    "BatchMatMulV2": [1, 1e3, 2e3],
    "Conv2DBackpropInput": [1, 3e3, 3e3],
    "Softmax": [1, 5e2, 1e3],
    "AddV2": [4, 2e3, 1e3],
  }
  shown = run_measured.types_table({"rows": {"net": {"types": types}}})
  cells = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in shown.splitlines()[2:]
  ]
  assert cells[:4] == [
    ["all products", "3", "2.00", "4.00", "0.50"],
    ["all convolutions", "1", "3.00", "3.00", "1.00"],
    ["all rows", "1", "0.50", "1.00", "0.50"],
    ["all memory", "4", "2.00", "1.00", "2.00"],
  ]
  assert ["MatMul", "2", "1.00", "2.00", "0.50"] in cells[4:]
