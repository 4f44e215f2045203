"""Seconds of the one-shot placers on one core, by size of the graph.

Runs on training graphs of the zoo's models (from the cache of extracted graphs,
if they are there), on `--graphs` of your own, and on synthetic graphs with
Inception-V3's proportions. Seconds are of one core, median of `--times`, from
the graph in memory to the evaluated placement. Each row is printed and saved
as soon as it is there; a run that was cut off goes on.

  python -m benchmarks.speed.run_placers
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import functools
import pathlib
import resource
import statistics
from collections.abc import Callable

from absl import flags
from rich import console, table

from benchmarks.lib import saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import synthetic
from tfplace import placers
from tfplace.core import OpGraph, Problem
from tfplace.core.presets import cluster_preset
from tfplace.errors import TfplaceError
from tfplace.formats import load_graph
from tfplace.placers.registry import CLASSICAL
from tfplace.plan import graph_cache
from tfplace.plan import sources as extraction
from tfplace.simulate import Simulator

# What m-SCT's linear program may take is a share of this.
BUDGET_S = 600.0
OPTIONS = Options("run_placers", __doc__)
_MODELS = OPTIONS.add("models", ["rnnlm_8", "gnmt_8"], "Zoo models.")
_GRAPHS = OPTIONS.add("graphs", [], "Graph files, besides.")
_OPS = OPTIONS.add(
  "ops", [1000, 10000, 50000, 100000], "Sizes of synthetic graphs."
)
_ON = OPTIONS.add("on", "p100x8", "Cluster preset.")
_PLACERS = OPTIONS.add("placers", list(CLASSICAL), "Strategies.")
_TIMES = OPTIONS.add("times", 3, "Timings, of which the median.")
_OUT = OPTIONS.out("placer_speed.json")


def core_s() -> float:
  """Seconds that this process and its children (Scotch) have computed."""
  used = map(
    resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  )
  return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measured(graph: OpGraph, strategy: str) -> dict:
  """Seconds and step time of one placer on one graph."""
  cluster = cluster_preset(_ON.value)
  about = {"ops": graph.num_ops, "edges": graph.num_edges}
  timings = []
  for _ in range(_TIMES.value):
    problem = Problem(graph, cluster)  # anew: it keeps what it has computed
    simulator = Simulator(problem, num_threads=1)
    placer = placers.get_placer(strategy)
    began = core_s()
    try:
      result = placer.place(problem, simulator, placers.Budget(BUDGET_S), 0)
    except TfplaceError as error:
      return {**about, "error": str(error), "seconds": core_s() - began}
    timings.append(core_s() - began)
  return {
    **about,
    "seconds": statistics.median(timings),
    "timings": timings,
    "step_time_us": result.evaluation.step_time_us,
    "ratio_to_bound": result.evaluation.step_time_us / problem.lower_bound_us,
  }


def sources() -> dict[str, Callable[[], OpGraph]]:
  """Label -> the graph, loaded when a row of it is missing."""
  kept = graph_cache.default_directory()
  found: dict[str, Callable[[], OpGraph]] = {}
  for name in _MODELS.value:
    found[name] = functools.partial(
      extraction.extract, name, _ON.value, cache_dir=kept
    )
  for path in _GRAPHS.value:
    found[pathlib.Path(path).name.split(".")[0]] = functools.partial(
      load_graph, path
    )
  for ops in _OPS.value:
    found[f"synthetic_{ops}"] = functools.partial(
      synthetic.synthetic_graph, int(ops), 0
    )
  return found


def print_table(rows: dict[tuple[str, str], dict]) -> None:
  """A line for each placer, a column for each graph."""
  shown = table.Table(title=f"{_ON.value}: seconds on one core")
  shown.add_column("placer", no_wrap=True)
  graphs = list(dict.fromkeys(graph for graph, _ in rows))
  for graph in graphs:
    shown.add_column(graph, justify="right", overflow="fold")
  for strategy in _PLACERS.value:
    found = (rows[graph, strategy] for graph in graphs)
    shown.add_row(
      strategy,
      *("-" if "error" in row else f"{row['seconds']:.2f}" for row in found),
    )
  console.Console().print(shown)


def main(_: flags.FlagValues) -> None:
  saved_rows.pin_to_cores(1)
  rows = saved_rows.SavedRows(
    _OUT.value, {"cluster": _ON.value, "times": _TIMES.value}
  )
  # The first call compiles, once per installation.
  warm = synthetic.synthetic_graph(100, 0)
  for strategy in _PLACERS.value:
    measured(warm, strategy)
  found = {}
  for label, load in sources().items():
    graph = functools.cache(load)
    for strategy in _PLACERS.value:
      found[label, strategy] = rows.row(
        f"{label}/{strategy}", lambda g=graph, s=strategy: measured(g(), s)
      )
  print_table(found)


if __name__ == "__main__":
  OPTIONS.run(main)
