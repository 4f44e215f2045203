"""Speedups of placements with and without XLA.

For each model, cluster and precision, the steps of single ops and of units that
XLA compiles are simulated on one GPU, data parallel on all, and placed by
`auto`, which chooses the microbatches. Keras users have the step on one GPU
with XLA, and data parallelism without.

  python -m benchmarks.run_fusion
  python -m benchmarks.run_fusion --models=gpt_medium --clusters=v100x4
"""

import math
from collections.abc import Mapping
from typing import Any

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from benchmarks.run_auto import Row
from benchmarks.sets import Graphs, trained
from tfplace.bin import cli
from tfplace.core.order import AUTO

NONE, XLA = "none", "xla"
COLUMNS = ("one device", "data parallel", "auto")
PRECISIONS = {"fp32": "float32", "mixed": "mixed_float16"}
MODELS = (
  *("bert_base", "gpt_medium", "vit", "resnet50_gn"),
  *("resnet50_bn", "unet", "translator", "mixture_of_experts"),
)

OPTIONS = Options("run_fusion", __doc__)
OPTIONS.add("models", [*MODELS], "Models of models.py.")
OPTIONS.add("clusters", ["v100x4", "a100x4", "h100x8"], "Presets.")
OPTIONS.add("precisions", [*PRECISIONS], "Of fp32 and mixed.")
OPTIONS.add("microbatches", ["1", "4"], "Numbers of data parallelism.")
OPTIONS.add_search(5.0, "fusion.json")


def main(values: flags.FlagValues) -> None:
  """Measures missing rows; saves after each."""
  counts = lib.numbers("microbatches", values.microbatches, 1)
  seeds = lib.numbers("seeds", values.seeds)
  lib.check_names("precisions", values.precisions, PRECISIONS)
  cli.load_tensorflow()
  for name in values.models:
    trained(name)
  settings = {"budget_s": values.budget_s, "microbatches": counts}
  rows = lib.Rows(values.out, settings, seeds=seeds[:1])
  for name in values.models:
    for precision in values.precisions:
      graphs = {
        compiles: Graphs(
          name,
          values.clusters,
          values.graph_cache_dir,
          compile_units=compiles == XLA,
          precision=PRECISIONS[precision],
        )
        for compiles in (NONE, XLA)
      }
      for cluster in values.clusters:
        of = {
          compiles: Row(of, cluster, counts, values.budget_s, seeds[0])
          for compiles, of in graphs.items()
        }
        key = f"{name}/{cluster}/{precision}"
        rows.row(key, lambda of=of: {c: measured(r) for c, r in of.items()})
  for table in tables(rows.found).values():
    print(f"\n{table}")


def measured(row: Row) -> dict[str, Any]:
  """Returns the columns of a model on a cluster."""
  problems = {n: row.problem(count=n, sizes=None) for n in row.counts}
  return {
    "ops": {count: p.graph.num_ops for count, p in problems.items()},
    "one device": row.one_device(problems[1]),
    "data parallel": row.data_parallel(problems),
    "auto": row.auto(AUTO),
  }


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns speedups over one GPU with XLA, by cluster and precision."""
  of: dict[str, list[Mapping[str, Any]]] = {}
  for key, row in found["rows"].items():
    _, cluster, precision = key.split("/")
    of.setdefault(f"`{cluster}`, {precision}", []).append(row)
  lines = [
    [
      label,
      *(
        lib.mean_and_least(
          [_us(row, XLA, "one device") / _us(row, *way) for row in rows]
        )
        for way in (
          (NONE, "one device"),
          *((compiles, c) for c in COLUMNS[1:] for compiles in (NONE, XLA)),
        )
      ),
    ]
    for label, rows in of.items()
  ]
  heads = (
    "devices",
    *("one GPU without XLA", "data parallel without", "with XLA"),
    *("`auto` without", "with XLA"),
  )
  text = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  return {"fusion": text}


def _us(row: Mapping[str, Any], compiles: str, column: str) -> float:
  return float(row[compiles][column].get("step_time_us", math.inf))


if __name__ == "__main__":
  OPTIONS.run(main)
