"""tfplace-doctor: what it tells of a healthy installation and of faults."""

import json
import os
import pathlib
import subprocess
import sys
from importlib import metadata

import pytest

from tfplace.bin import doctor
from tfplace.measure.local import host

ROOT = pathlib.Path(__file__).parents[2]
HEALTHY = {
  "stage": "training a placed model",
  "failure": "",
  "gpus": [],
  "devices": ["CPU:0", "CPU:1"],
  "expected": [1.0, 0.5],
  "losses": [1.0, 0.50000001],
}


@pytest.fixture(name="examined")
def _examined(monkeypatch, capsys):
  """A function that runs the command with a child that told given facts."""
  monkeypatch.delenv("KERAS_BACKEND", raising=False)
  monkeypatch.setattr(host, "_DRIVERS", ())

  def examined(**facts):
    monkeypatch.setattr(doctor, "_report", lambda _: {**HEALTHY, **facts})
    code = doctor.run(["--json"])
    shown = capsys.readouterr()
    data = json.loads(shown.out.splitlines()[-1])
    assert data["ok"] == (code == 0)
    assert len(shown.err.splitlines()) == code  # One line says what is broken.
    for finding in data["findings"]:
      kind = "broken" if finding["is_broken"] else "note"
      line = f"  {kind}: {finding['problem']}: {finding['way_out']}"
      assert line in shown.out
      assert (finding["problem"] in shown.err) == finding["is_broken"]
    return code, data["findings"], data

  return examined


def test_a_placed_step_of_this_host_is_told(capsys, monkeypatch):
  """The only test that imports, asks and trains for real."""
  monkeypatch.delenv("KERAS_BACKEND", raising=False)
  code = doctor.run(["--json"])
  shown = capsys.readouterr()
  assert code == 0, shown.err
  data = json.loads(shown.out.splitlines()[-1])
  assert data["ok"] and data["self_test"]["passed"]
  assert len(set(data["self_test"]["devices"])) == 2
  losses = data["self_test"]["losses"]
  assert losses[-1] < losses[0]
  assert data["devices"]["cores"] >= 1
  assert data["libraries"]["tensorflow"] == metadata.version("tensorflow")


def test_a_healthy_host_has_no_findings(examined):
  code, findings, _ = examined()
  assert (code, findings) == (0, [])


@pytest.mark.parametrize(
  ("facts", "problem"),
  [
    ({"losses": [1.0, 0.6]}, "its losses are [1.0, 0.6] and not [1.0, 0.5]"),
    ({"losses": [1.0, float("nan")]}, "its losses are [1.0, nan]"),
    ({"devices": ["CPU:0"]}, "placed on ['CPU:0'], not on two devices"),
    ({"failure": "ended with code 7"}, "ended with code 7 while training"),
  ],
)
def test_a_placed_step_that_differs_is_broken(facts, problem, examined):
  code, (finding,), data = examined(**facts)
  assert code == 1
  assert problem in finding["problem"]
  assert data["self_test"]["passed"] is False


def test_the_self_test_suits_unequal_gpus_and_cards_to_measure(monkeypatch):
  import keras
  import tensorflow as tf

  from tfplace.measure.local import gpus

  class ReadyError(Exception):
    """The devices are set up."""

  def ready(_):
    raise ReadyError

  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["a", "b"])
  monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
  monkeypatch.setattr(keras.utils, "set_random_seed", ready)
  try:
    with pytest.raises(ReadyError):
      doctor._train()
    # An A100 would multiply in TF32 and a V100 in fp32, so losses would differ
    # by more than `_SAME`.
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(True)
  assert doctor._PART_MB * 2**20 >= gpus._MEMORY_BYTES


def test_a_library_that_ends_the_process_is_found(monkeypatch, tmp_path):
  (tmp_path / "tensorflow.py").write_text("import os\nos.abort()\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  facts = doctor._report(True)
  assert facts["stage"] == "importing tensorflow"
  assert facts["failure"] == "was ended by SIGABRT"


@pytest.mark.parametrize("broken", ["numpy", "rich"])
def test_a_library_that_the_command_needs_is_one_line(broken, tmp_path):
  (tmp_path / f"{broken}.py").write_text("raise RuntimeError('torn apart')\n")
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  done = subprocess.run(
    [sys.executable, "-m", "tfplace.bin.doctor"],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, "PYTHONPATH": path},
  )
  assert done.returncode == 1
  last = done.stderr.splitlines()[-1]
  assert last.startswith("tfplace-doctor: error: ") and "torn apart" in last
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.19.0", "2.22.1", None])
def test_a_version_out_of_range_is_broken(version, examined, monkeypatch):
  real = metadata.version

  def installed(name):
    if name.startswith("tensorflow"):
      if version is None or name != "tensorflow":
        raise metadata.PackageNotFoundError(name)
      return version
    return real(name)

  monkeypatch.setattr(doctor.metadata, "version", installed)
  code, (finding,), _ = examined()
  assert code == 1
  wrong = "is not installed" if version is None else f"{version} is outside of"
  assert finding["problem"].startswith(f"tensorflow {wrong}")
  assert finding["way_out"].startswith("pip install 'tensorflow")


@pytest.mark.parametrize("has_cuda", [True, False])
def test_the_gpu_extra_needs_the_extras_of_tensorflow(has_cuda, monkeypatch):
  real = metadata.version

  def installed(name):
    if not name.startswith("nvidia-"):
      return real(name)
    if not has_cuda:
      raise metadata.PackageNotFoundError(name)
    return "12.0"

  monkeypatch.setattr(doctor.metadata, "version", installed)
  lines, _, _ = doctor._libraries({"failure": None, "stage": ""})
  lacks = "lacks tensorflow[and-cuda]: pip install 'tfplace[gpu]'"
  assert f"extra gpu: {'installed' if has_cuda else lacks}" in lines


def test_keras_on_another_backend_is_broken(examined, monkeypatch, tmp_path):
  monkeypatch.setenv("KERAS_HOME", str(tmp_path))
  (tmp_path / "keras.json").write_text('{"backend": "torch"}')
  code, (finding,), _ = examined()
  assert code == 1
  assert finding["problem"].startswith("Keras runs on backend 'torch'")


def test_a_driver_without_a_gpu_is_noted(examined, monkeypatch):
  monkeypatch.setattr(host, "_DRIVERS", (__file__,))
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  code, (finding,), _ = examined()
  assert code == 0
  assert finding["way_out"] == "unset CUDA_VISIBLE_DEVICES, which is '-1'"
  # Slurm sets a number, which may be right.
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
  _, (finding,), _ = examined()
  assert "which is '0', or pip install 'tfplace[gpu]'" in finding["way_out"]
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
  _, (finding,), _ = examined()
  assert finding["problem"].endswith("CUDA libraries are missing or too old")
  assert "pip install 'tfplace[gpu]'" in finding["way_out"]


def test_gpus_that_share_launch_threads_are_noted(examined, monkeypatch):
  monkeypatch.delenv("TF_GPU_THREAD_MODE", raising=False)
  assert examined(gpus=["NVIDIA H200"])[1] == []
  code, (finding,), _ = examined(gpus=["NVIDIA H200"] * 2)
  assert code == 0
  assert "TF_GPU_THREAD_MODE=gpu_private" in finding["way_out"]
  monkeypatch.setenv("TF_GPU_THREAD_MODE", "gpu_private")
  assert examined(gpus=["NVIDIA H200"] * 2)[1] == []
