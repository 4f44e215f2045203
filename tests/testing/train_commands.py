"""Command line and environment of training processes in tests."""

import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
needs_extra_train = pytest.mark.skipif(
  any(
    importlib.util.find_spec(name) is None
    for name in ("tf_agents", "tensorflow_gnn", "tf_keras")
  ),
  reason="needs the extra 'train'",
)


def environment(**more):
  """The environment of a child that imports this very tfplace."""
  path = os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])
  return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **more}


def train_command(tmp_path, *more):
  """tfplace-train on `tiny.json` of `tmp_path`."""
  return [
    sys.executable,
    "-m",
    "tfplace.bin.train",
    f"--graphs={tmp_path / 'tiny.json'}",
    f"--cluster={tmp_path / 'cluster.json'}",
    *more,
  ]
