"""The curve of a training run: bins, what was done twice, and the files."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

from benchmarks.learned import run_pretraining


def logged(folder, rewards, first):
  with tf.summary.create_file_writer(str(folder)).as_default():
    for step, reward in enumerate(rewards, first):
      tf.summary.scalar(f"graph{step % 2}/reward", reward, step=step)
      tf.summary.scalar(f"graph{step % 2}/entropy", 9.0, step=step)


def test_iterations_that_were_repeated_count_once(tmp_path):
  logged(tmp_path / "logs", [0.0, -1.0, 5.0], 10)
  found = run_pretraining.rewards(str(tmp_path))
  assert found == {10: 0.0, 11: -1.0, 12: 5.0}
  logged(tmp_path / "logs", [-2.0, -3.0], 12)  # went on from a checkpoint
  assert len(run_pretraining.rewards(str(tmp_path))) == 4


def test_bins_are_geometric_means_and_the_rest_is_left_out():
  found = {7: 0.0, 8: -2.0, 9: 1.0, 10: 1.0, 11: 99.0}
  points = run_pretraining.curve(found, 2)
  assert [done for done, _ in points] == [2, 4]
  assert [value for _, value in points] == pytest.approx(
    [2.71828, 0.36788], 1e-5
  )
  assert len(run_pretraining.curve({0: 0.5}, 500)) == 1


def test_the_command_writes_both_files(tmp_path):
  logged(tmp_path / "logs", [-0.5] * 4, 0)
  command = [sys.executable, "-m", run_pretraining.__name__, "--bin=2"]
  command += [f"--checkpoint_dir={tmp_path}", f"--out={tmp_path / 'c.json'}"]
  subprocess.run(command, check=True)
  points = json.loads((tmp_path / "c.json").read_text())["points"]
  assert points == [
    [2, pytest.approx(1.64872, 1e-5)],
    [4, pytest.approx(1.64872, 1e-5)],
  ]
  assert (tmp_path / "c.png").stat().st_size > 1000
  command[-2] = f"--checkpoint_dir={tmp_path / 'nothing'}"
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode and "has no log of PPO iterations" in done.stderr
