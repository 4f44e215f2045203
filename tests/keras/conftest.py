"""Runs the files of this folder in a child process with three CPU devices.

Logical devices can only be configured before TensorFlow starts, and would then
be there for every other test of the same process. All files share the child.
"""

import os
import pathlib
import sys

import pytest

from tests.testing import child_pytest
from tests.testing.slow import SLOW_TESTS

_CHILD = "TFPLACE_APPLY_TESTS"
_TIMEOUT_S = 3600 if SLOW_TESTS else 900
_results: dict[pathlib.Path, dict[str, str | None]] = {}
_children: list[child_pytest.PytestChild] = []  # one, once a test has run

if _CHILD in os.environ:
  import tensorflow as tf

  tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 3,
  )


def pytest_pyfunc_call(pyfuncitem):
  if _CHILD in os.environ:
    return None
  path = pyfuncitem.path
  if path not in _results:
    _results[path] = _run_file(pyfuncitem.session, path)
  crash = _results[path][child_pytest.CRASH] or "it did not run"
  failure = _results[path].get(_key(pyfuncitem.nodeid), crash)
  if failure is not None:
    pytest.fail(failure, pytrace=False)
  return True


def _run_file(session, path):
  """Its tests that `-k` and the like left."""
  selected = [item.nodeid for item in session.items if item.path == path]
  if not _children:
    root = session.config.rootpath
    child = child_pytest.PytestChild(root, _environment(), _TIMEOUT_S)
    _children.append(child)
  return _children[0].run(selected)


def pytest_unconfigure():
  while _children:
    _children.pop().close()


def _key(nodeid):
  path, _, name = nodeid.partition("::")
  return f"{pathlib.PurePath(path).stem}::{name}"


def _environment():
  env = {**os.environ, _CHILD: "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
  env.pop("TF_USE_LEGACY_KERAS", None)
  env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
  return env
