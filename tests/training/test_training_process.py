"""Runs the tests that need Keras 2, in a process that has it."""

import subprocess
import sys

import pytest
import rl_testing

FOLDER = rl_testing.HERE / "training"
MODULES = sorted(path.stem for path in FOLDER.glob("test_*.py"))


@rl_testing.needs_extra_train
@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", MODULES)
def test_in_a_training_process(module):
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "pytest",
      "-q",
      "-p",
      "no:cacheprovider",
      str(FOLDER / f"{module}.py"),
    ],
    env=rl_testing.environment(TF_USE_LEGACY_KERAS="1"),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
