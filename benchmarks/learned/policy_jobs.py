"""Trainings and placements of the papers' experiments, kept as saved rows.

A job is what `method_runs.py` is given. Those of one call share one process,
with Keras 2; each leaves its result in a folder of its own as soon as it is
done, so that what was cut off goes on, inside a training from its checkpoint.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.lib import one_gpu, published, saved_rows
from tfplace import bounds, core
from tfplace.core.budget import Budget
from tfplace.learned import training_process
from tfplace.placers.registry import get_placer
from tfplace.simulate import Simulator

RUNS = "benchmarks.learned.method_runs"


class Jobs:
  """Runs jobs, and keeps what they found.

  Args:
    work_dir: graphs, checkpoints, policies.
    saved: where the results are kept.
  """

  def __init__(self, work_dir: str, saved: saved_rows.SavedRows) -> None:
    self._work = pathlib.Path(work_dir)
    self._saved = saved

  def folder(self, key: str) -> pathlib.Path:
    """Returns the working directory of a job."""
    return self._work / re.sub(r"[^\w.]+", "_", key)

  def policy(self, key: str) -> pathlib.Path:
    """Returns the directory to which a job exports its policy."""
    return self.folder(key) / "policy"

  def run(self, jobs: Mapping[str, dict[str, Any]]) -> dict[str, dict]:
    """The result of each job, by key; runs those that no file has."""
    missing = []
    for key, job in jobs.items():
      folder = self.folder(key)
      if key not in self._saved and not (folder / "result.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        missing.append({**job, "work_dir": str(folder)})
    if missing:
      start(missing)
    return {
      key: self._saved.row(key, lambda key=key: self._result(key))
      for key in jobs
    }

  def _result(self, key: str) -> dict:
    found = json.loads((self.folder(key) / "result.json").read_text("utf-8"))
    for curve in found.get("curves", [found]):
      curve["curve"] = improvements(curve["curve"])
    return found

  def graph(self, row: published.Row, key: str) -> tuple[str, dict]:
    """A row's graph as a file, and what placements of it are compared with."""
    path = one_gpu.graph_file(row, self._work / "graphs")
    return str(path), self._saved.row(
      f"{key}/graph", lambda: graph_facts(one_gpu.problem_of(row))
    )


def by_arm(
  results: Mapping[str, dict],
) -> dict[str, dict[str, list[dict]]]:
  """Results by "label/arm/seed" -> label -> arm -> one per seed."""
  found: dict[str, dict[str, list[dict]]] = {}
  for key, result in results.items():
    label, arm, _ = key.rsplit("/", 2)
    found.setdefault(label, {}).setdefault(arm, []).append(result)
  return found


def start(jobs: list[dict[str, Any]]) -> None:
  """Runs jobs one after the other, in a process that may train."""
  subprocess.run(
    [sys.executable, "-m", RUNS, json.dumps(jobs)],
    check=True,
    env={**os.environ, training_process.SWITCH: "1"},
  )


def graph_facts(problem: core.Problem) -> dict:
  """Size, proven bound, and the step times of one device and the expert."""
  problem = bounds.tightened(problem)
  simulator = Simulator(problem)
  times = {
    name: get_placer(name).place(problem, simulator, Budget(60.0), 0)
    for name in ("single", "expert")
  }
  return {
    "ops": problem.graph.num_ops,
    "lower_bound_us": problem.lower_bound_us,
    **{f"{n}_us": r.evaluation.step_time_us for n, r in times.items()},
  }


def improvements(curve: list[list]) -> list[list]:
  """[evaluations, seconds, step time] where it falls, and the last one."""
  kept: list[list] = []
  for point in curve[:-1]:
    if point[2] is not None and (not kept or point[2] < kept[-1][2]):
      kept.append(point)
  return [*kept, curve[-1]]
