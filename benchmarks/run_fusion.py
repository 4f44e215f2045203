"""Speedups of placements with and without XLA.

For each model, cluster and precision, the steps of single ops and of units that
XLA compiles are simulated on one GPU, data parallel on all, and placed by
`auto`, in as many microbatches as there are GPUs. Every search simulates
`--evaluations` placements, so its result does not depend on the machine. Keras
users have the step on one GPU with XLA, and data parallelism without.

  python -m benchmarks.run_fusion
  python -m benchmarks.run_fusion --models=gpt_medium --clusters=v100x4
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from benchmarks.run_auto import EQUAL, LABELS, Row, placed
from benchmarks.sets import Graphs, trained
from tfplace.bin import cli
from tfplace.graph.argument_checks import AUTO
from tfplace.hardware.presets import cluster_preset

NONE, XLA = "none", "xla"
COLUMNS = ("one device", "data parallel", "auto")
PRECISIONS = {"fp32": "float32", "mixed": "mixed_float16"}
MODELS = (
  *("bert_base", "gpt_medium", "vit", "resnet50_gn"),
  *("resnet50_bn", "unet", "translator", "mixture_of_experts"),
)
_LONG_S = 1e6  # Seconds limit no search.
_LABELS = {
  **LABELS,
  "resnet50_bn": "ResNet-50, BatchNormalization",
  "mixture_of_experts": "Switch Transformer, 8 layers of 512",
}

OPTIONS = Options("run_fusion", __doc__)
OPTIONS.add("models", [*MODELS], "Models of models.py.")
OPTIONS.add("clusters", ["v100x4", "a100x4", "h100x8"], "Presets.")
OPTIONS.add("precisions", [*PRECISIONS], "Of fp32 and mixed.")
OPTIONS.add("evaluations", 500, "Placements of each search.", least=1)
OPTIONS.add_search(None, "fusion.json")


def main(values: flags.FlagValues) -> None:
  """Measures missing rows; saves after each."""
  seeds = lib.numbers("seeds", values.seeds)
  lib.check_names("precisions", values.precisions, PRECISIONS)
  gpus = {name: _num_gpus(name) for name in values.clusters}
  cli.load_tensorflow()
  for name in values.models:
    trained(name)
  settings = {"evaluations": values.evaluations}
  rows = lib.Rows(values.out, settings, seeds=seeds[:1])
  for cluster in values.clusters:
    alike = [name for name, count in gpus.items() if count == gpus[cluster]]
    for name in values.models:
      for precision in values.precisions:
        graphs = {
          compiles: Graphs(
            name,
            alike,
            values.graph_cache_dir,
            compile_units=compiles == XLA,
            precision=PRECISIONS[precision],
          )
          for compiles in (NONE, XLA)
        }
        of = {
          compiles: Row(found, cluster, [1, gpus[cluster]], _LONG_S, seeds[0])
          for compiles, found in graphs.items()
        }
        rows.row(
          f"{name}/{cluster}/{precision}",
          lambda of=of: measured(of, values.evaluations),
        )
  for table in tables(rows.found).values():
    print(f"\n{table}")


def _num_gpus(cluster: str) -> int:
  return sum(not d.is_cpu for d in cluster_preset(cluster).devices)


def measured(
  rows: Mapping[str, Row], evaluations: int
) -> dict[str, dict[str, Any]]:
  """Returns the columns of a model on a cluster, by compilation."""
  # Both graphs of a trace are built before the next one.
  problems: dict[str, dict[int, Any]] = {compiles: {} for compiles in rows}
  for count in next(iter(rows.values())).counts:
    for compiles, row in rows.items():
      problems[compiles][count] = row.problem(count=count, sizes=None)
  return {
    compiles: {
      "ops": {count: p.graph.num_ops for count, p in found.items()},
      "one device": rows[compiles].one_device(found[1]),
      "data parallel": rows[compiles].data_parallel(found),
      "auto": placed(
        *(found[max(found)], "auto", _LONG_S, rows[compiles].seed, AUTO),
        max_evaluations=evaluations,
      ),
    }
    for compiles, found in problems.items()
  }


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns mean speedups over one GPU with XLA, and a table by model.

  The last column is the best of the ways without a search over `auto`, all with
  XLA.
  """
  of: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
  for key, row in found["rows"].items():
    _, cluster, precision = key.split("/")
    of.setdefault(cluster, {}).setdefault(precision, []).append(row)
  ways: list[Callable[[Mapping[str, Any]], float]] = [
    lambda row, way=way: _us(row, XLA, "one device") / _us(row, *way)
    for way in (
      (NONE, "one device"),
      *((NONE, "data parallel"), (XLA, "data parallel"), (XLA, "auto")),
    )
  ]
  ways.append(
    lambda row: (
      min(_us(row, XLA, c) for c in COLUMNS[:2]) / _us(row, XLA, "auto")
    )
  )
  lines = [
    [
      f"`{cluster}` ({max(map(len, each.values()))})",
      *(", ".join(_mean(map(way, r)) for r in each.values()) for way in ways),
    ]
    for cluster, each in of.items()
  ]
  heads = ("devices", "one GPU, no XLA", "data parallel, no XLA")
  heads += ("data parallel", "`auto`", "gain")
  text = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  return {"fusion": text, "fusion_models": _of_models(found)}


def _of_models(found: Mapping[str, Any]) -> str:
  """Returns milliseconds of what Keras users have and of `auto`, by model."""
  lines = []
  for key, row in found["rows"].items():
    model, cluster, precision = key.split("/")
    if cluster == EQUAL:
      users = _us(row, XLA, "one device"), _us(row, NONE, "data parallel")
      auto_us = _us(row, XLA, "auto")
      shown = [f"{us / 1e3:.1f}" for us in (*users, auto_us)]
      gain = f"{min(users) / auto_us:.2f}"
      lines.append([_LABELS.get(model, model), precision, *shown, gain])
  heads = ("model", "precision", "one GPU, XLA", "data parallel, no XLA")
  return lib.markdown((*heads, "`auto`, XLA", "gain"), lines)


def _mean(values: Iterable[float]) -> str:
  """Returns the geometric mean of ways that fit."""
  return f"{lib.geometric_mean(v for v in values if v > 0):.2f}"


def _us(row: Mapping[str, Any], compiles: str, column: str) -> float:
  return float(row[compiles][column].get("step_time_us", math.inf))


if __name__ == "__main__":
  OPTIONS.run(main)
