"""GDP on graphs of 50,000 ops: seconds and memory of a placement and a step.

Each figure comes from a process of its own: one zero-shot placement with every
group a decision (features, the shipped policy, its most probable placement,
one simulation; TensorFlow, the policy and the graph are loaded before the
clock), one imitation step, and one PPO iteration of 16 samples. The first call
compiles and traces; the second is timed, and a third profiled: how much of it
TensorFlow's compiled functions take, how much the simulator, and how many
functions are traced anew. Memory is the peak resident size, everything
included. Prints a table and writes JSON; the graphs come from tfplace-extract.
Training needs the extra `train`.

  python -m benchmarks.learned.run_scale --graphs=gnmt_8.json.gz,rnnlm_8.json.gz
"""

import cProfile
import json
import os
import pathlib
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import flags
from rich import console, table

from benchmarks.lib.command import Options
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph
from tfplace.formats.json_file import write_json
from tfplace.learned import training_process

PARTS = ("place", "imitate", "improve")
# (file, function) -> what the profile calls it.
PARTS_OF_A_STEP = {
  ("polymorphic_function.py", "__call__"): "tensorflow",
  ("simulator.py", "run"): "simulator",
  ("func_graph.py", "func_graph_from_py_func"): "traced",
}
OPTIONS = Options("run_scale", __doc__)
_GRAPHS = OPTIONS.add("graphs", [], "tfplace.graph.v1 files.")
_CLUSTER = OPTIONS.add("cluster", "p100x8", "Cluster preset.")
_PART = OPTIONS.add("part", None, "In a child: what to time.", choices=PARTS)
_OUT = OPTIONS.out("learning_scale.json")


def placing(problem: Problem) -> Callable[[], Any]:
  """One zero-shot placement of every group."""
  from tfplace.learned import policies
  from tfplace.learned.decisions import group_decisions
  from tfplace.learned.encoder import features
  from tfplace.simulate import Simulator

  policy = policies.load_placers_policy("gdp", None)

  def place() -> float:
    fresh = Problem(problem.graph, problem.cluster)  # nothing kept from before
    decisions = group_decisions(fresh)
    logits = policy.logits(features.extract(decisions, axes=policy.axes))
    devices = decisions.to_devices(logits.argmax(axis=1))
    return float(Simulator(fresh).run(devices[None]).step_time_us[0])

  return place


def training(problem: Problem, part: str) -> Callable[[], Any]:
  """One step of a learner that has every group to decide on."""
  from tfplace.learned.decisions import group_decisions
  from tfplace.learned.gdp.learner import GdpLearner
  from tfplace.learned.train.config import TrainConfig
  from tfplace.learned.train.demonstrations import DemonstrationConfig
  from tfplace.learned.train.tasks import make_task
  from tfplace.simulate import Simulator

  searched = DemonstrationConfig(("single", "blocks"))
  task = make_task(group_decisions(problem), Simulator(problem), searched)
  learner = GdpLearner([task], TrainConfig())
  if part == "imitate":
    return lambda: learner.imitate(0)
  return lambda: learner.improve(0, np.random.default_rng(0))


def measure(path: str, part: str) -> dict[str, float]:
  """Measures seconds of a second call and peak memory, in a child process."""
  if part != "place":
    training_process.enter_training_process()
  problem = Problem(load_graph(path), cluster_preset(_CLUSTER.value))
  run = placing(problem) if part == "place" else training(problem, part)
  run()
  core_s, began = time.process_time(), time.perf_counter()
  run()
  seconds = time.perf_counter() - began
  core_s = time.process_time() - core_s
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    "ops": problem.graph.num_ops,
    "seconds": seconds,
    "core_seconds": core_s,
    "peak_gib": peak / 2**20,
    **profiled(run),
  }


def profiled(run: Callable[[], Any]) -> dict[str, float]:
  """Shares of a call's seconds, and the functions that it traces."""
  profile = cProfile.Profile()
  began = time.perf_counter()
  profile.runcall(run)
  seconds = time.perf_counter() - began
  calls = dict.fromkeys(PARTS_OF_A_STEP.values(), (0, 0.0))
  # (file, line, function) -> (primitive calls, calls, own s, all s, callers)
  for (file, _, function), found in pstats.Stats(profile).stats.items():
    name = PARTS_OF_A_STEP.get((pathlib.Path(file).name, function))
    if name is not None:
      calls[name] = (found[0], found[3])
  return {
    "tensorflow": calls["tensorflow"][1] / seconds,
    "simulator": calls["simulator"][1] / seconds,
    "traced": calls["traced"][0],
  }


def in_child(path: str, part: str) -> dict[str, float]:
  flags_given = [f"--graphs={path}", f"--cluster={_CLUSTER.value}"]
  done = subprocess.run(
    [sys.executable, "-m", __spec__.name, *flags_given, f"--part={part}"],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  return json.loads(done.stdout.splitlines()[-1])


def main(_: flags.FlagValues) -> None:
  if _PART.value:
    print(json.dumps(measure(_GRAPHS.value[0], _PART.value)))
    return
  heads = ("seconds", "core s", "peak GiB", "TensorFlow", "simulator", "traced")
  shown = table.Table("graph", "ops", "part", *heads)
  rows = {}
  for path in _GRAPHS.value:
    name = pathlib.Path(path).name.split(".")[0]
    for part in PARTS:
      row = rows[f"{name}/{part}"] = in_child(path, part)
      cells = [
        f"{row[key]:.2f}" for key in ("seconds", "core_seconds", "peak_gib")
      ]
      cells += [f"{row[key]:.0%}" for key in ("tensorflow", "simulator")]
      cells.append(str(row["traced"]))
      shown.add_row(name, str(row["ops"]), part, *cells)
      write_json(_OUT.value, {"cluster": _CLUSTER.value, "rows": rows})
  console.Console(width=100).print(shown)


if __name__ == "__main__":
  OPTIONS.run(main)
