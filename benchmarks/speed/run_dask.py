"""Searches on Dask workers of one core each, at equal seconds.

For models of `models/reference.py` in microbatches: the step time that `auto`
finds with 1 and with 2 workers, with 2 of which one is killed in the first
round, and with 16. The 16 are replayed: the tasks of a round run in turn on two
workers, each with its own core and seconds, and the clock of the search counts
a round once. Needs two idle cores.

  python -m benchmarks.speed.run_dask
"""

import contextlib
import dataclasses
import logging
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator

import distributed
from absl import flags
from distributed.deploy.subprocess import SubprocessWorker

from benchmarks.lib import report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.microbatches.run_models import Graphs
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.evaluation import Result
from tfplace.placers.parallel import rounds
from tfplace.placers.parallel.tasks import SearchTask, warm_up_workers
from tfplace.placers.parallel.workers import Workers, opened_workers

MANY = 16
KILLED_AT = 0.2  # Share of the budget: the middle of the first round.
COLUMNS = ("1", "2", "2, one killed", f"{MANY}, replayed")
OPTIONS = Options("run_dask", __doc__)
OPTIONS.add(
  "steps",
  ["gpt_small:4:v100x2+p100x2", "bert_small:4:v100x4", "vit:4:a100x4+v100x4"],
  "Models, microbatches and clusters.",
)
OPTIONS.add("seeds", ["0", "1"], "Seeds of the searches.")
OPTIONS.add("budget_s", 10.0, "Seconds of each search.")
OPTIONS.add("graph_cache_dir", os.path.expanduser("~/.cache/tfplace"), "Cache.")
OPTIONS.out("dask.json")


class ReplayedSearch(rounds.ParallelSearch):
  """Search with more tasks per round than workers."""

  def _limit_s(self, task: SearchTask) -> None:
    return None

  def _round(self, number: int, tasks: list[SearchTask]) -> list[Result]:
    began = time.perf_counter()
    found = super()._round(number, tasks)
    excess_s = time.perf_counter() - began - tasks[0].seconds
    started = self.budget.started + max(excess_s, 0.0)
    self.budget = dataclasses.replace(self.budget, started=started)
    return found


def main(values: flags.FlagValues) -> None:
  """Runs what is missing of each row; saves after each."""
  cli.load_tensorflow()
  rows = saved_rows.SavedRows(values.out, {"budget_s": values.budget_s})
  found = {}
  for step in values.steps:
    model, count, cluster = step.split(":")
    graphs = Graphs(model, [cluster], values.graph_cache_dir)
    config = dataclasses.replace(graphs.allows, count=int(count))
    problem = graphs.problem(config, cluster)
    for seed in values.seeds:
      key = f"{step}:{seed}"
      found[key] = rows.row(
        key,
        lambda p=problem, s=int(seed): measure(p, values.budget_s, s),
      )
  report.write(values.out, markdown(found, values.budget_s))


def measure(problem: Problem, budget_s: float, seed: int) -> dict[str, dict]:
  """The columns of one row."""
  task = SearchTask("auto", budget_s, seed, "arrival")
  row = {}
  for column, number in zip(COLUMNS, (1, 2, 2, MANY), strict=True):
    with pinned_workers(min(number, 2)) as (workers, client):
      warm_up_workers(workers, "auto", False, True)
      killer = threading.Timer(KILLED_AT * budget_s, kill_one, [client])
      if "killed" in column:
        killer.start()
      began = time.perf_counter()
      if number == MANY:
        result = ReplayedSearch(problem, task, workers, number).run()
      else:
        result = rounds.place_on_workers(problem, task, workers, number)
      row[column] = {
        "step_time_us": result.evaluation.step_time_us,
        "evaluations": result.evaluations,
        "wall_s": time.perf_counter() - began,
        "history": [[p.seconds, p.step_time_us] for p in result.history],
      }
      killer.cancel()
  return row


@contextlib.contextmanager
def pinned_workers(
  number: int,
) -> Iterator[tuple[Workers, distributed.Client]]:
  """Workers of one core each."""
  options = {
    "nthreads": 1,
    "dashboard": False,
    "silence_logs": logging.CRITICAL,
  }
  worker = {
    "cls": SubprocessWorker,
    "options": {"worker_class": "distributed.Nanny", "worker_kwargs": options},
  }
  address = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
  scheduler = {"cls": distributed.Scheduler, "options": address}
  with (
    distributed.SpecCluster(
      dict.fromkeys(range(number), worker),
      scheduler,
      worker,
      silence_logs=logging.CRITICAL,
    ) as cluster,
    distributed.Client(cluster, set_as_default=False) as client,
  ):
    client.wait_for_workers(number)
    for core, name in enumerate(client.scheduler_info()["workers"]):
      client.run(pin, core, workers=[name])
    with opened_workers(cluster.scheduler_address) as workers:
      yield workers, client


def pin(core: int) -> None:
  """Keeps all threads of this process on one core."""
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {core})


def kill_one(client: distributed.Client) -> None:
  """Kills a worker; its nanny starts it again."""
  os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)


def markdown(rows: dict[str, dict], budget_s: float) -> str:
  """Step times in ms, then the geometric mean over that of one worker."""
  lines = [
    [key, *(f"{row[c]['step_time_us'] / 1e3:.2f}" for c in COLUMNS)]
    for key, row in rows.items()
  ]
  ratios = [
    report.geometric_mean(
      [r[c]["step_time_us"] / r["1"]["step_time_us"] for r in rows.values()]
    )
    for c in COLUMNS
  ]
  lines.append(["geometric mean over 1", *(f"{r:.3f}" for r in ratios)])
  seconds = [
    statistics.median(row[c]["wall_s"] for row in rows.values())
    for c in COLUMNS
  ]
  lines.append(["seconds, median", *(f"{s:.1f}" for s in seconds)])
  return (
    f"Simulated ms per step by workers, searches of {budget_s:g} s.\n\n"
    + report.markdown(("step", *COLUMNS), lines)
    + "\n"
  )


if __name__ == "__main__":
  OPTIONS.run(main)
