"""How long the one-shot placers take on one core, by size of the graph.

On synthetic graphs with Inception-V3's proportions, and on `--graphs` of your
own; seconds are of one thread, median of `--times`, from the graph in memory
to the evaluated placement. Prints a table and writes JSON.

  python benchmarks/placer_speed.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import pathlib
import statistics
import sys

from absl import app, flags
from rich import console, table

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import simulator_speed

from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.graph import OpGraph, Problem, load_graph
from tfplace.graph.json_file import write_json
from tfplace.graph.presets import cluster_preset
from tfplace.placers.registry import CLASSICAL
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parent
# What m-SCT's linear program may take is a share of this.
BUDGET_S = 600.0
_OPS = flags.DEFINE_list("ops", [1000, 10000, 50000, 100000], "Graph sizes.")
_GRAPHS = flags.DEFINE_list("graphs", [], "Graph files, besides.")
_ON = flags.DEFINE_string("on", "p100x4", "Cluster preset.")
_PLACERS = flags.DEFINE_list("placers", list(CLASSICAL), "Strategies.")
_TIMES = flags.DEFINE_integer("times", 3, "Timings, of which the median.")
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "placer_speed.json"), "JSON file to write."
)


def core_s() -> float:
  """Seconds that this process and its children (Scotch) have computed."""
  return sum(os.times()[:4])


def row(graph: OpGraph, strategy: str) -> dict:
  """Seconds and step time of one placer on one graph."""
  cluster = cluster_preset(_ON.value)
  timings = []
  for _ in range(_TIMES.value):
    problem = Problem(graph, cluster)  # anew: it keeps what it has computed
    simulator = Simulator(problem, num_threads=1)
    placer = placers.get_placer(strategy)
    began = core_s()
    try:
      result = placer.place(problem, simulator, placers.Budget(BUDGET_S), 0)
    except TfplaceError as error:
      return {"graph": graph.name, "strategy": strategy, "error": str(error)}
    timings.append(core_s() - began)
  return {
    "graph": graph.name,
    "ops": graph.num_ops,
    "strategy": strategy,
    "seconds": statistics.median(timings),
    "step_time_us": result.evaluation.step_time_us,
    "ratio_to_bound": result.evaluation.step_time_us / problem.lower_bound_us,
  }


def print_rows(rows: list[dict]) -> None:
  shown = table.Table(title=f"{_ON.value}: seconds on one core")
  shown.add_column("placer", no_wrap=True)
  graphs = list(dict.fromkeys(r["graph"] for r in rows))
  for name in graphs:
    shown.add_column(name, justify="right", overflow="fold")
  seconds = {(r["strategy"], r["graph"]): r.get("seconds") for r in rows}
  for strategy in _PLACERS.value:
    taken = [seconds[strategy, name] for name in graphs]
    shown.add_row(strategy, *("-" if s is None else f"{s:.2f}" for s in taken))
  console.Console().print(shown)


def main(argv: list[str]) -> None:
  del argv
  graphs = [simulator_speed.synthetic_graph(int(n), 0) for n in _OPS.value]
  graphs += [load_graph(path) for path in _GRAPHS.value]
  # The first call compiles, once per installation.
  warm = simulator_speed.synthetic_graph(100, 0)
  for strategy in _PLACERS.value:
    row(warm, strategy)
  rows = [row(graph, s) for graph in graphs for s in _PLACERS.value]
  print_rows(rows)
  write_json(pathlib.Path(_RESULT.value), {"cluster": _ON.value, "rows": rows})


if __name__ == "__main__":
  app.run(main)
