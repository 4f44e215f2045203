"""The ablation trains what is missing, and its table compares arms by seed."""

import json
import os
import subprocess
import sys

from extra_train import needs_extra_train

from benchmarks.learned import ablation_report, ablation_training
from tfplace import core, formats
from tfplace.learned import policies, training_process

_RUN = """
import sys
from benchmarks.learned import ablation_training
from tfplace import Problem, load_graph
from tfplace.core.presets import cluster_preset
graph = load_graph(sys.argv.pop(1))
problem = Problem(graph, cluster_preset("k80x2"))
ablation_training.load_problems = lambda job: [problem]
ablation_training.main()
"""


def train_tiny(folder, **job):
  """What the script prints that trains on a chain of 30 ops."""
  ops = [
    core.OpSpec(f"op{i}", "Relu", {"GPU": 50.0, "CPU": 500.0}, [1e6])
    for i in range(30)
  ]
  graph = core.build_graph("tiny", ops, [(i, 0, i + 1) for i in range(29)])
  formats.save_graph(graph, folder / "tiny.json")
  about = {"seeds": ["0"], "iterations": 2, "work_dir": str(folder)}
  done = subprocess.run(
    [
      *(sys.executable, "-c", _RUN),
      *(str(folder / "tiny.json"), json.dumps({**about, **job})),
    ],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, training_process.SWITCH: "1"},
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


@needs_extra_train
def test_every_arm_is_trained_once_and_leaves_a_policy(tmp_path):
  arms = ["tasks in one order", ablation_training.LAST]
  printed = train_tiny(tmp_path, arms=arms)
  assert printed.splitlines() == [
    "tasks in one order, seed 0: trained",
    "shipped, seed 0: trained",
  ]
  for arm in (*arms, ablation_training.SHIPPED):
    policies.load_policy(ablation_training.policy_dir(str(tmp_path), arm, "0"))
  assert train_tiny(tmp_path, arms=arms) == ""


def row(one_shot, random, **policies):
  found = {name.replace("_", "/"): us for name, us in policies.items()}
  return {"one_shot_us": one_shot, "random_us": random, "policy_us": found}


def test_the_table_compares_means_over_the_rows_seed_by_seed():
  rows = {
    "a": row(100.0, 120.0, shipped_0=50.0, shipped_1=90.0, x_0=100.0, x_1=90.0),
    "b": row(10.0, None, shipped_0=20.0, shipped_1=10.0, x_0=10.0, x_1=None),
  }
  _, _, shipped, x, random = ablation_report.table(
    rows, ["shipped", "x"], ["0", "1"]
  )
  # Means over the rows: sqrt(0.5 * 2), sqrt(0.9 * 1), sqrt(1 * 1), and with
  # twice the one-shot placer's time where nothing fits sqrt(0.9 * 2).
  assert shipped == "| shipped | 1.000 | 0.949 | 0.974 |  |"
  assert x == "| x | 1.000 | 1.342 | 1.158 | 1.000, 1.414 |"
  assert random.split("|")[4].strip() == "1.200"


@needs_extra_train
def test_an_unknown_arm_is_named():
  done = subprocess.run(
    [
      *(sys.executable, "-m", "benchmarks.learned.run_ablation"),
      "--arms=none of them",
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode
  assert "--arms: 'none of them' is none of shipped, all draws" in done.stderr
