"""Searches of the same steps by several methods, at equal effort.

`search` is the search of `annealing` and `auto`; `plain` anneals single groups
without coarse ones. Both begin with the best classical placements. The table
has the median of the seeds over the proven bound, and their spread.

  python -m benchmarks.run_search --graphs=FOLDER --steps=development
"""

import gzip
import json
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from absl import flags

from benchmarks import lib, sets
from benchmarks.lib import Options
from tfplace import extract, formats, placers
from tfplace.errors import TfplaceError
from tfplace.graph import Problem
from tfplace.graph.budget import Budget
from tfplace.hardware.presets import cluster_preset
from tfplace.models import zoo
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search import search

_STARTS = 3
_PROBE = 500  # evaluations of the search that measures their rate
# Model, microbatches, cluster, and: xla for units, sizes, or "twice" for two
# independent copies of the graph.
SETS = {
  "development": (
    *("gnmt 1 v100x8 layers=8", "gnmt 1 v100x8 xla layers=8"),
    *("rnnlm 1 p100x4 layers=4", "transformer_xl 1 p100x4 layers=4"),
    *("inception_v3 1 p100x4 twice", "amoebanet_d 1 p100x4"),
    *("gpt_medium 8 v100x8", "gpt_medium 8 v100x8 xla", "unet 4 v100x4"),
    *("gpt_small 4 v100x2+p100x2", "resnet50_gn 8 a100x4+v100x4"),
    "bert_base 8 2*a100x8",
  ),
  "holdout": (
    *("rnnlm 1 v100x8 layers=8", "rnnlm 1 v100x8 xla layers=8"),
    *("gnmt 1 p100x4 layers=4", "gnmt 1 p100x4 xla layers=4"),
    *("transformer_xl 1 p100x8 layers=8", "convnext 8 v100x8"),
    *(
      "wavenet 1 p100x4 stacks=4 layers_per_stack=36",
      "bert_base 4 v100x4 xla",
    ),
    *("translator 4 v100x2+p100x2", "mixture_of_experts 2 2*v100x2"),
    *("gpt_medium 8 2*(a100x4+v100x4)", "unet 1 k80x2+p100x2"),
  ),
}
# Attributes of the module `search` that a method sets.
METHODS: Mapping[str, Mapping[str, Any]] = {
  "search": {"coarse_levels": search.coarse_levels},
  "plain": {"coarse_levels": lambda groups: [], "_LARGE": 10**9},
}

OPTIONS = Options("run_search", __doc__)
OPTIONS.add("steps", [*SETS], f"Steps, or sets of them: {', '.join(SETS)}.")
OPTIONS.add("methods", [*METHODS], f"Methods: {', '.join(METHODS)}.")
OPTIONS.add("evaluations", 0, "Placements to simulate; 0 to use --seconds.")
OPTIONS.add("seconds", 10.0, "Processor seconds of each search.")
OPTIONS.add("seeds", ["0", "1", "2"], "Seeds of the searches.")
OPTIONS.add("graphs", "graphs", "Folder that keeps the traced steps.")


def main(values: flags.FlagValues) -> None:
  """Prints a line per step, as soon as it is measured."""
  lib.check_names("methods", values.methods, METHODS)
  seeds = lib.numbers("seeds", values.seeds)
  print(lib.markdown(("step", "ops", *values.methods), []))
  for step in [s for name in values.steps for s in SETS.get(name, (name,))]:
    problem = load(step, pathlib.Path(values.graphs))
    starts = best_starts(problem)
    cells = [step, f"{problem.graph.num_ops:,}"]
    for method in values.methods:
      with mock.patch.multiple(search, **METHODS[method]):
        count = values.evaluations
        if not count:
          *_, taken_s = searched(problem, starts, _PROBE, 0)
          count = int(values.seconds * _PROBE / taken_s)
        over = [searched(problem, starts, count, seed)[0] for seed in seeds]
      middle = statistics.median(over)
      cells.append(f"{middle:.3f} ({(max(over) - min(over)) / middle:.1%})")
    print(f"| {' | '.join(cells)} |", flush=True)


def load(step: str, folder: pathlib.Path) -> Problem:
  """Returns a step on its devices; traces it if no file has it."""
  model, microbatches, cluster, *more = step.split()
  path = folder / f"{step.replace(' ', '_')}.json.gz"
  if not path.exists():
    source: Any = model
    options: dict[str, Any] = {}
    if model not in zoo.MODELS:
      trained = sets.trained(model)
      source, options["batch_size"] = trained.build(), trained.batch_size
      options["allow_batch_statistics"] = trained.has_batch_statistics
    sizes = [text.split("=") for text in more if "=" in text]
    options["sizes"] = {name: int(size) for name, size in sizes}
    options["compile"] = "xla" if "xla" in more else "none"
    count = int(microbatches)
    graph = extract(source, cluster, microbatches=count, **options)
    folder.mkdir(parents=True, exist_ok=True)
    formats.save_graph(graph, path)
    if "twice" in more:
      text = json.dumps(_twice(json.loads(gzip.decompress(path.read_bytes()))))
      path.write_bytes(gzip.compress(text.encode()))
  return Problem(formats.load_graph(path), cluster_preset(cluster))


def _twice(graph: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a graph of two independent copies, in the format of files."""
  keys = {"ops": ("name", "colocation"), "edges": ("src", "dst")}
  copies = {
    part: [
      {**entry, **{k: entry[k] and f"{copy}/{entry[k]}" for k in names}}
      for copy in "ab"
      for entry in graph[part]
    ]
    for part, names in keys.items()
  }
  return {**graph, **copies}


def best_starts(problem: Problem) -> list[np.ndarray]:
  """Returns the [num_groups] devices of the best classical placements."""
  groups, found = GroupGraph(problem), {}
  for strategy in registry.classical(problem):
    try:
      result = placers.place(problem, strategy, budget_s=5.0)
    except TfplaceError:
      continue  # It needs a CPU, more devices or more memory.
    found[result.placement.devices.tobytes()] = result
  best = sorted(found.values(), key=lambda r: r.evaluation.step_time_us)
  return [groups.contract(r.placement.devices) for r in best[:_STARTS]]


def searched(
  problem: Problem, starts: Sequence[np.ndarray], count: int, seed: int
) -> tuple[float, float]:
  """Returns the step time over the bound, and processor seconds."""
  began = time.process_time()
  found = search.Search(GroupGraph(problem), seed, like=starts[0])
  found.run(starts, Budget(1e9, count))
  taken_s = time.process_time() - began
  return found.best_us / problem.lower_bound_us, taken_s


if __name__ == "__main__":
  OPTIONS.run(main)
