"""tfplace-doctor: what it tells of a healthy installation and of faults."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
from importlib import metadata

import pytest

from tfplace.bin import doctor
from tfplace.bin.checks import caches, children, host, libraries
from tfplace.plan import graph_cache

ROOT = pathlib.Path(__file__).parents[2]
CPU = {"name": "CPU:0", "kind": "CPU", "memory_bytes": 8e9}
HEALTHY = {
  "code_folders": [os.path.dirname(__file__)],
  "backend": "tensorflow",
  "has_cuda": False,
  "has_rocm": False,
  "gpus": [],
  "logical_devices": [{"name": "CPU:0", "memory_bytes": 268435456}],
  "cluster": [CPU],
  "links": [],
}
PASSED = {
  "devices": ["CPU:0", "CPU:1"],
  "place_seconds": 1.5,
  "expected": [1.0, 0.5],
  "losses": [1.0, 0.50000001],
}


class FakeChild:
  """A child that has told its facts."""

  def __init__(self, report):
    self._report = report

  def report(self, timeout_s):
    assert timeout_s > 0
    return self._report


@pytest.fixture(name="examined")
def _examined(monkeypatch, capsys):
  """A function that runs the command with children that told given facts."""
  for name in ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "NUMBA_CACHE_DIR"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(host, "_cores", lambda: 4)

  def examined(probe=None, test=None, stage="", failure="", test_failure=""):
    reports = {
      "probe": children.Report({**HEALTHY, **(probe or {})}, stage, failure),
      "self_test": children.Report(
        {**PASSED, **(test or {})}, "placing a model", test_failure
      ),
    }

    @contextlib.contextmanager
    def started(module):
      yield FakeChild(reports[module.rpartition(".")[2]])

    monkeypatch.setattr(children, "started", started)
    code = doctor.run(["--json"])
    shown = capsys.readouterr()
    data = json.loads(shown.out.splitlines()[-1])
    assert data["ok"] == (code == 0)
    assert len(shown.err.splitlines()) == code  # One line says what is broken.
    for finding in data["findings"]:
      line = f"{finding['problem']}: {finding['way_out']}"
      kind = "broken" if finding["is_broken"] else "note"
      assert f"  {kind}: {line}" in shown.out
      assert (finding["problem"] in shown.err) == finding["is_broken"]
    return code, data, shown.out

  return examined


def only(data):
  (finding,) = data["findings"]
  return finding


def test_a_placed_step_of_this_host_is_told(capsys, monkeypatch):
  """The only test that imports, asks and trains for real, in two children."""
  monkeypatch.delenv("KERAS_BACKEND", raising=False)
  code = doctor.run(["--json"])
  shown = capsys.readouterr()
  assert code == 0, shown.err
  data = json.loads(shown.out.splitlines()[-1])
  assert data["ok"]
  test = data["self_test"]
  assert test["passed"]
  assert len(set(test["devices"])) == 2
  assert test["losses"] == pytest.approx(test["expected_losses"], rel=1e-4)
  assert test["losses"][-1] < test["losses"][0]
  assert data["devices"]["cores"] >= 1
  assert data["devices"]["backend"] == "tensorflow"
  assert any(d["name"] == "CPU:0" for d in data["devices"]["logical_devices"])
  code_cache = data["caches"][1]
  assert code_cache["num_files"] > 0  # The self-test has compiled.
  versions = {lib["name"]: lib["version"] for lib in data["libraries"]}
  assert versions["tensorflow"] == metadata.version("tensorflow")
  for title in ("Devices", "Links", "Libraries", "Extras", "Caches"):
    assert f"\n{title}\n" in shown.out


def test_a_healthy_host_has_no_findings(examined):
  code, data, out = examined()
  assert code == 0
  assert data["findings"] == []
  assert "All that tfplace needs works." in out
  assert "cluster=None: CPU:0 is the only device" in out
  assert "has the losses of the unplaced one: 1, 0.5" in out


@pytest.mark.parametrize("backend", ["jax", "nonsense"])
def test_keras_on_another_backend_is_broken(backend, capsys, monkeypatch):
  # Neither is installed, so Keras cannot be imported, nor can TensorFlow.
  monkeypatch.setenv("KERAS_BACKEND", backend)
  assert doctor.run(["--noself_test", "--json"]) == 1
  shown = capsys.readouterr()
  problem = f"Keras runs on backend '{backend}' (KERAS_BACKEND); only 'tensor"
  assert problem in shown.err
  findings = json.loads(shown.out.splitlines()[-1])["findings"]
  (broken,) = [finding for finding in findings if finding["is_broken"]]
  assert broken["way_out"].startswith("set KERAS_BACKEND=tensorflow")


@pytest.mark.parametrize("told", ["by its file", "by itself"])
def test_the_backend_of_a_file_or_of_keras_itself_counts(
  told, examined, monkeypatch, tmp_path
):
  monkeypatch.setenv("KERAS_HOME", str(tmp_path))
  facts = {"backend": "torch"}
  if told == "by its file":
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    facts = {"import keras": "ModuleNotFoundError: No module named 'torch'"}
  code, data, _ = examined(facts)
  assert code == 1
  assert only(data)["problem"].startswith("Keras runs on backend 'torch' (")


def test_a_library_that_ends_the_process_is_a_finding(
  capsys, monkeypatch, tmp_path
):
  (tmp_path / "tensorflow.py").write_text("import os\nos.abort()\n")
  path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
  monkeypatch.setenv("PYTHONPATH", path)
  assert doctor.run(["--noself_test"]) == 1
  shown = capsys.readouterr()
  (line,) = shown.err.splitlines()
  assert "was ended by SIGABRT while importing tensorflow" in line
  assert "pip install --force-reinstall 'tensorflow" in shown.out
  assert "\n  compiled placers: " in shown.out
  assert "\nLibraries\n" in shown.out  # All that can be told is told.


def test_a_library_that_cannot_be_imported_is_broken(examined):
  error = "ImportError: Numba needs NumPy 2.3 or less"
  code, data, _ = examined({"import numba": error})
  assert code == 1
  assert only(data)["problem"] == f"numba cannot be imported ({error})"
  assert only(data)["way_out"].startswith(
    "pip install --force-reinstall 'numba"
  )


@pytest.mark.parametrize("version", ["2.19.0", "2.22.1", None])
def test_a_version_out_of_range_is_broken(version, examined, monkeypatch):
  real = metadata.version

  def installed(name):
    if name.startswith("tensorflow"):
      if version is None or name != "tensorflow":
        raise metadata.PackageNotFoundError(name)
      return version
    return real(name)

  monkeypatch.setattr(libraries.metadata, "version", installed)
  code, data, _ = examined()
  assert code == 1
  wanted = ">=2.21,<2.22"
  problem = f"tensorflow {version} is outside of {wanted}"
  if version is None:
    problem = f"tensorflow is not installed (wanted {wanted})"
  assert only(data) == {
    "problem": problem,
    "way_out": f"pip install 'tensorflow{wanted}'",
    "is_broken": True,
  }


def test_a_package_that_is_not_installed_has_no_versions(examined, monkeypatch):
  def requires(name):
    raise metadata.PackageNotFoundError(name)

  monkeypatch.setattr(libraries.metadata, "requires", requires)
  code, data, _ = examined()
  assert code == 0
  assert "without being installed" in only(data)["problem"]
  code, data, _ = examined({"import numba": "ImportError: no LLVM"})
  assert code == 1
  assert data["findings"][1]["problem"].startswith("numba cannot be imported")


def test_a_missing_extra_says_what_it_gives_and_its_line(monkeypatch, examined):
  real = metadata.version

  def installed(name):
    if name == "bokeh":
      raise metadata.PackageNotFoundError(name)
    return real(name)

  monkeypatch.setattr(libraries.metadata, "version", installed)
  code, data, out = examined()
  assert code == 0
  assert data["findings"] == []
  given = {extra["name"]: extra["installed"] for extra in data["extras"]}
  assert given["report"] is False
  assert "lacks bokeh: pip install 'tfplace[report]'" in out
  assert libraries.GIVES["report"] in out


def test_every_extra_of_the_package_is_explained():
  text = (ROOT / "setup.py").read_text(encoding="utf-8")
  extras = text.split("extras_require={")[1].split("entry_points=")[0]
  assert set(libraries.GIVES) == set(
    re.findall(r'^    "(\w+)": ', extras, re.MULTILINE)
  )


def test_a_cache_that_cannot_be_written_is_noted(
  examined, monkeypatch, tmp_path
):
  (tmp_path / "file").write_text("")
  folder = str(tmp_path / "file" / "tfplace")
  monkeypatch.setattr(graph_cache, "default_directory", lambda: folder)
  code, data, _ = examined()
  assert code == 0
  assert only(data)["problem"].startswith(f"{folder} cannot be written, so")
  assert only(data)["way_out"].startswith("set XDG_CACHE_HOME to a folder")


def test_missing_cache_folders_are_noted(examined, monkeypatch):
  monkeypatch.setattr(graph_cache, "default_directory", lambda: None)
  code, data, _ = examined({"code_folders": []})
  assert code == 0
  ways = [finding["way_out"] for finding in data["findings"]]
  assert [way.split()[1] for way in ways] == [
    "XDG_CACHE_HOME",
    "NUMBA_CACHE_DIR",
  ]


def test_a_folder_that_numba_passes_over_is_noted(examined, monkeypatch):
  monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/numba")
  code, data, _ = examined()
  assert code == 0
  assert only(data)["problem"].startswith("NUMBA_CACHE_DIR=/proc/numba cannot")


def test_cached_files_are_counted(tmp_path, monkeypatch):
  for name, size in (("a.nbi", 3), ("a.1.nbc", 5), ("a.pyc", 100)):
    (tmp_path / name).write_bytes(bytes(size))
  (tmp_path / f"{'0' * 64}.opgraph").write_bytes(bytes(7))
  found = caches.code([str(tmp_path)])
  assert (found.num_files, found.num_bytes, found.is_writable) == (2, 8, True)
  monkeypatch.setattr(graph_cache, "default_directory", lambda: str(tmp_path))
  graphs = caches.graphs()
  assert (graphs.num_files, graphs.num_bytes) == (1, 7)


@pytest.mark.parametrize(
  ("environment", "driver", "problem", "way_out"),
  [
    ({}, None, "sees no GPU", "nothing to do on a host without GPUs"),
    ({}, __file__, f"though {__file__} says", "tensorflow[and-cuda]"),
    (
      {"CUDA_VISIBLE_DEVICES": "-1"},
      __file__,
      "(CUDA_VISIBLE_DEVICES='-1' is set)",
      "unset CUDA_VISIBLE_DEVICES",
    ),
  ],
)
def test_a_cuda_build_without_a_gpu_is_noted(
  environment, driver, problem, way_out, examined, monkeypatch
):
  for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(host, "_DRIVERS", (driver or "/dev/no-such-driver",))
  code, data, _ = examined({"has_cuda": True})
  assert code == 0
  assert problem in only(data)["problem"]
  assert way_out in only(data)["way_out"]


def test_gpus_are_told_with_their_memory_and_links(examined):
  gpu = {"name": "NVIDIA H100", "compute_capability": "9.0"}
  names = ("CPU:0", "GPU:0", "GPU:1")
  link = {"bandwidth_bytes_per_us": 12e3, "latency_us": 25.0}
  links = [{"src": x, "dst": y, **link} for x in names for y in names if x != y]
  code, _, out = examined(
    {
      "has_cuda": True,
      "gpus": [gpu, gpu],
      "logical_devices": [
        {"name": name, "memory_bytes": 77 * 2**30} for name in names
      ],
      "cluster": [{**CPU, "name": name} for name in (*names[1:], "CPU:0")],
      "links": links,
    }
  )
  assert code == 0
  assert "GPU 1: NVIDIA H100, compute capability 9.0" in out
  assert "logical devices: CPU:0, GPU:0 (77 GiB), GPU:1 (77 GiB)" in out
  # 12e9 bytes/s are 11.2 GiB/s.
  assert "CPU:0 -> GPU:0 and 5 more: 11.2 GiB/s, 25 us (described)" in out
  assert "cluster=None: GPU:0, GPU:1, CPU:0; the step is measured on G" in out


def test_a_single_core_is_noted(examined, monkeypatch):
  monkeypatch.setattr(host, "_cores", lambda: 1)
  code, data, out = examined()
  assert code == 0
  assert only(data)["problem"].startswith("this process may use 1 core,")
  assert "--cluster=workers:2" in out


def test_legacy_keras_is_noted(examined, monkeypatch):
  monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
  code, data, _ = examined()
  assert code == 0
  assert only(data)["problem"].startswith("TF_USE_LEGACY_KERAS=1 makes")


@pytest.mark.parametrize(
  ("facts", "problem"),
  [
    ({"losses": [1.0, 0.6]}, "its losses are [1.0, 0.6] and not [1.0, 0.5]"),
    ({"losses": [1.0, float("nan")]}, "its losses are [1.0, nan]"),
    ({"devices": ["CPU:0"]}, "placed on CPU:0 and not on two devices"),
  ],
)
def test_a_placed_step_that_differs_is_broken(facts, problem, examined):
  code, data, _ = examined(test=facts)
  assert code == 1
  assert problem in only(data)["problem"]
  assert data["self_test"]["passed"] is False


def test_a_self_test_that_fails_is_broken(examined):
  code, data, _ = examined(test_failure="failed with ApplyError: no")
  assert code == 1
  problem = only(data)["problem"]
  assert "failed with ApplyError: no while placing a model" in problem


def test_a_known_cause_is_told_once(examined):
  told = {"failure": "was ended by SIGSEGV", "stage": "importing tensorflow"}
  code, data, _ = examined(test_failure="was ended by SIGSEGV", **told)
  assert code == 1
  assert "SIGSEGV while importing tensorflow" in only(data)["problem"]
  assert data["self_test"]["passed"] is False


def test_a_check_that_fails_itself_is_a_finding(examined, monkeypatch):
  def broken():
    raise OSError("no /proc here")

  monkeypatch.setattr(host, "this_host", broken)
  code, data, out = examined()
  assert code == 1
  assert only(data)["problem"] == (
    "the check of devices failed with OSError: no /proc here"
  )
  assert "\nCaches\n" in out


def test_a_missing_library_of_the_command_itself_is_one_line():
  code = (
    "import sys; sys.modules['rich'] = None;"
    "from tfplace.bin import doctor; sys.exit(doctor.run([]))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )
  assert done.returncode == 1
  (line,) = done.stderr.splitlines()
  assert line.startswith("tfplace-doctor: error: 1 broken: rich cannot be")


CHILDREN = {
  "done": ("tell('fact', 1)", "", 1),
  "died": (
    "tell('fact', 1); tell('stage', 'dying'); os.kill(os.getpid(), 11)",
    "was ended by SIGSEGV",
    1,
  ),
  "failed": ("tell('fact', 2); 1 / 0", "failed with ZeroDivisionError", 2),
  "exited": ("tell('fact', 3); os._exit(7)", "ended with code 7", 3),
  "hung": ("tell('fact', 4); time.sleep(60)", "did not end within 3 s", 4),
  "half": ("print('tfplace-doctor: {\"fa', end='')", "", None),
}


@pytest.mark.parametrize("end", CHILDREN)
def test_a_child_reports_what_it_told_before_its_end(
  end, tmp_path, monkeypatch
):
  body, failure, fact = CHILDREN[end]
  code = (
    "import os, time\n"
    "from tfplace.bin.checks.children import run_in_child, tell\n"
    f"def work():\n  {body}\n"
    "run_in_child(work)\n"
  )
  (tmp_path / "doctors_child.py").write_text(code)
  path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
  monkeypatch.setenv("PYTHONPATH", path)
  with children.started("doctors_child") as child:
    report = child.report(3.0 if end == "hung" else 60.0)
  assert report.facts.get("fact") == fact
  if failure:
    assert report.failure.startswith(failure)
  else:
    assert report.failure == ""
  assert report.stage == ("dying" if end == "died" else "starting")


def test_help_tells_the_flags(capsys):
  assert doctor.run(["--help"]) == 0
  out = capsys.readouterr().out
  assert "usage: tfplace-doctor" in out
  assert "--[no]self_test" in out
