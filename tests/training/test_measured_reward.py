"""tfplace-train --reward=measure: PPO on the step times of two processes."""

import subprocess
import sys

import keras
import pytest

from tests.testing import train_commands
from tests.testing.slow import SLOW
from tfplace import formats
from tfplace.graph import Problem
from tfplace.learned.policies import load_policy
from tfplace.simulate import Simulator


def save_model(path):
  inputs = keras.Input((8,))
  towers = [keras.layers.Dense(8, name=f"d{i}")(inputs) for i in range(2)]
  outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(towers))
  model = keras.Model(inputs, outputs, name="towers")
  model.compile("sgd", "mse")
  model.save(path)


@SLOW
@train_commands.needs_extra_train
@pytest.mark.timeout(600)
def test_what_is_found_has_a_measured_time(tmp_path):
  save_model(tmp_path / "towers.keras")
  flags = [
    f"--models={tmp_path / 'towers.keras'}",
    "--reward=measure",
    f"--checkpoint_dir={tmp_path / 'run'}",
    f"--export_dir={tmp_path / 'policy'}",
    "--cluster=workers:2",
    "--strategy=gdp",
    "--iterations=1",
    "--imitation_steps=1",
    "--samples=2",
    "--max_decisions=8",
    "--measured_steps=1",
  ]
  done = subprocess.run(
    [sys.executable, "-m", "tfplace.bin.train", *flags],
    env=train_commands.environment(COLUMNS="120"),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  row = next(x for x in done.stdout.splitlines() if "workers:2" in x)
  start_us, best_us = [
    float(cell.split()[0]) for cell in row.split("│") if " us" in cell
  ]
  # The problem is kept for a run that goes on, with its costs as measured.
  folder = tmp_path / "run" / "graphs"
  problem = Problem(
    formats.load_graph(next(folder.glob("*.json.gz"))),
    formats.load_cluster(next(folder.glob("*.cluster.json"))),
  )
  found = formats.load_placement(
    next((tmp_path / "policy" / "placements").glob("*.json")), problem
  )
  simulated_us = Simulator(problem).run(found.devices[None]).step_time_us[0]
  assert 0 < best_us <= start_us
  assert best_us != pytest.approx(simulated_us, rel=1e-6)
  assert load_policy(tmp_path / "policy").info["strategy"] == "gdp"
