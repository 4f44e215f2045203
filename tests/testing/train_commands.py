"""Command line and environment of training processes in tests."""

import os
import pathlib
import sys

from tests.testing.extra_train import needs_extra_train

__all__ = ["environment", "needs_extra_train", "train_command"]
ROOT = pathlib.Path(__file__).parents[2]


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
