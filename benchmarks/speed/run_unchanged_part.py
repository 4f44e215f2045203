"""What simulating only what a move changes would save the search.

A move changes nothing before the first op of it has an input, or at all if it
holds an op without inputs, such as a variable. For the moves that the search
proposes, from its coarsest to its finest clusters, at a placement that it has
found: the mean share of the ops that start before that, which is what a
simulation from there on would not repeat, and the share of the moves that
change the step from its beginning.

  python -m benchmarks.speed.run_unchanged_part
"""

import pathlib

import numba
import numpy as np
from absl import app, flags
from rich import console, table

from benchmarks.lib import published
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.formats.json_file import write_json
from tfplace.placers import place
from tfplace.placers.coarsen import coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.config import SearchConfig, scale_of
from tfplace.placers.search.moves import propose
from tfplace.placers.search.state import MOVED, search_state, search_tables
from tfplace.plan import graph_cache, sources
from tfplace.simulate import Simulator, engine

HERE = pathlib.Path(__file__).parents[1]
STAGES = 12  # shares of a round at which moves are drawn
_ROWS = flags.DEFINE_list(
  "rows",
  ["Inception b32", "2-layer GNMT", "8-layer GNMT"],
  "Labels of rows of the published tables.",
)
_GPU = flags.DEFINE_string("gpu", "p100", "GPU of the presets.")
_SECONDS = flags.DEFINE_float("seconds", 20.0, "Of the search before.")
_MOVES = flags.DEFINE_integer("moves", 400, "Moves drawn at each stage.")
_CACHE = flags.DEFINE_string(
  "graph_cache_dir", graph_cache.default_directory(), "Of extracted graphs."
)
_OUT = flags.DEFINE_string(
  "out", str(HERE / "results" / "unchanged_part.json"), "JSON file to write."
)


def unchanged(problem: Problem, seconds: float, moves: int) -> dict:
  """Draws moves around what a search of so many seconds has found."""
  groups = GroupGraph(problem)
  found = place(problem, "annealing", budget_s=seconds, seed=0)
  first_us, starts_us = _first_change(groups, found.placement.devices)
  shares = np.array(
    [
      np.searchsorted(starts_us, first_us[moved].min()) / len(starts_us)
      for moved in _moved(groups, found.placement.devices, moves)
    ]
  )
  return {
    "ops": problem.graph.num_ops,
    "moves": len(shares),
    "unchanged": float(shares.mean()),
    "from_the_beginning": float((shares == 0).mean()),
  }


def _first_change(
  groups: GroupGraph, devices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """[num_groups] when a group's first input is made, 0 where an op has none;
  and all ops' starts, in order.
  """
  problem = groups.problem
  schedule = Simulator(problem).schedule(devices)
  input_us = np.full(problem.graph.num_ops, np.inf)
  made_us = schedule.op_end_us[problem.graph.edge_src]
  np.minimum.at(input_us, problem.graph.edge_dst, made_us)
  input_us[np.isinf(input_us)] = 0.0
  first_us = np.full(groups.num_groups, np.inf)
  np.minimum.at(first_us, problem.group_of, input_us)
  return first_us, np.sort(schedule.op_start_us)


@numba.njit
def _propose(tables, state, lowest, highest, part_share):
  propose(tables, state, lowest, highest, part_share)


def _moved(
  groups: GroupGraph, devices: np.ndarray, moves: int
) -> list[np.ndarray]:
  """The groups that each proposed move takes to another device."""
  tables = search_tables(groups, coarsen_by_work(groups))
  state = search_state(
    groups, groups.contract(devices), np.random.SeedSequence(0)
  )
  scale = scale_of(groups, SearchConfig(), len(tables.movable), 0.0)
  Chain(state, tables, engine.pack(groups.problem), scale).restart(
    state.devices
  )
  result = []
  for progress in np.linspace(0, 1, STAGES, endpoint=False):
    levels = scale.levels(tables.top_level, progress, scale.hot_us)
    for _ in range(moves):
      _propose(tables, state, *levels, scale.part_share)
      moved = state.moved[: state.counts[MOVED]]
      targets = state.targets[: state.counts[MOVED]]
      moved = moved[targets != state.devices[moved]]
      if len(moved):
        result.append(moved.copy())
  return result


def of_row(row: published.Row) -> dict:
  on = row.cluster(_GPU.value)
  (graph,) = sources.extract_each(
    row.model,
    [on],
    batch_size=row.batch_size,
    sizes=row.sizes,
    cache_dir=_CACHE.value,
  )
  problem = Problem(graph, cluster_preset(on))
  return unchanged(problem, _SECONDS.value, _MOVES.value)


def main(argv: list[str]) -> None:
  del argv
  shown = table.Table()
  for head in ("model", "ops", "ops before the change", "moves from time 0"):
    shown.add_column(head)
  rows = {}
  for row in published.GO_ROWS:
    if row.label in _ROWS.value:
      rows[row.label] = of_row(row)
      ops, *shares = (
        rows[row.label][s] for s in ("ops", "unchanged", "from_the_beginning")
      )
      shown.add_row(row.label, f"{ops:,}", *(f"{x:.1%}" for x in shares))
  write_json(pathlib.Path(_OUT.value), rows)
  console.Console().print(shown)


if __name__ == "__main__":
  app.run(main)
