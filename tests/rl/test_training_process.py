"""Runs the tests that need Keras 2, in a process that has it."""

import subprocess
import sys

import pytest
import rl_testing


@rl_testing.needs_extra_train
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  "module",
  [
    "test_network",
    "test_agent",
    "test_averaging",
    "test_credit",
    "test_export",
    "test_imitation",
    "test_ten_ops",
    "test_placeto_network",
    "test_placeto_learner",
    "test_seq2seq",
    "test_reinforce",
    "test_sequence_learners",
  ],
)
def test_in_a_training_process(module):
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "pytest",
      "-q",
      "-p",
      "no:cacheprovider",
      str(rl_testing.HERE / "training" / f"{module}.py"),
    ],
    env=rl_testing.environment(TF_USE_LEGACY_KERAS="1"),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
