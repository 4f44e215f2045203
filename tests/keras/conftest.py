"""Runs the tests of this folder in one child process with three CPU devices.

Logical devices can only be configured before TensorFlow starts, and would then
be there for every other test of the same process.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import pytest

_CHILD = "TFPLACE_APPLY_TESTS"
_TIMEOUT_S = 3600 if "TFPLACE_ALL_MODELS" in os.environ else 900
_HERE = pathlib.Path(__file__).parent
_results: dict[str, str | None] = {}
_selected: list[str] = []

if _CHILD in os.environ:
  # Has no effect until a test turns auto-clustering on.
  os.environ["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit"
  import tensorflow as tf

  tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 3,
  )


def pytest_collection_finish(session):
  """What is left once `-k` and the like have had their say."""
  mine = [item for item in session.items if _HERE in item.path.parents]
  _selected[:] = [item.nodeid for item in mine]


def pytest_pyfunc_call(pyfuncitem):
  if _CHILD in os.environ:
    return None
  if not _results:
    _run_child(pyfuncitem.config.rootpath)
  crash = _results[""] or "it did not run"
  failure = _results.get(_key(pyfuncitem.nodeid), crash)
  if failure is not None:
    pytest.fail(failure, pytrace=False)
  return True


def _key(nodeid):
  path, _, name = nodeid.partition("::")
  return f"{pathlib.PurePath(path).stem}::{name}"


def _run_child(root):
  with tempfile.TemporaryDirectory() as folder:
    report = os.path.join(folder, "report.xml")
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    env = {**os.environ, _CHILD: "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env.pop("TF_USE_LEGACY_KERAS", None)
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    _results[""] = None
    try:
      done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *_selected],
        check=False,
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
      )
    except subprocess.TimeoutExpired:  # once is enough
      _results[""] = f"the tests took more than {_TIMEOUT_S} s"
      return
    if not os.path.exists(report):
      _results[""] = done.stdout + done.stderr
      return
    for case in ElementTree.parse(report).iter("testcase"):
      module = case.get("classname", "").rpartition(".")[2]
      bad = [case.find(tag) for tag in ("failure", "error")]
      text = next((b.text or "" for b in bad if b is not None), None)
      _results[f"{module}::{case.get('name')}"] = text
