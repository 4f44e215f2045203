"""Loss from a wrong cost model.

Places each step twice by `auto`: with Grappler's costs and with kernel times.
Both placements are simulated with kernel times, which are nearer to measured
GPUs, at equal seconds of search and over several seeds.

  python -m benchmarks.gpu.run_cost_models --budget_s=30 --seeds=0,1
"""

import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Callable

import keras
from absl import app, flags
from rich import console, table

import tfplace
from benchmarks.gpu import kernel_models
from tfplace.models import zoo

RESULTS = pathlib.Path(__file__).parents[1] / "results"
_BUDGET_S = flags.DEFINE_float("budget_s", 30.0, "Seconds of each search.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1"], "Seeds of the searches.")
_OUT = flags.DEFINE_string(
  "out", str(RESULTS / "cost_models.json"), "JSON file to write."
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A training step on a cluster.

  Attributes:
    name: of the model.
    build: builds and compiles it.
    batch: examples of a step.
    cluster: name of a preset.
    microbatches: of the step.
    policy: Keras' dtype policy.
  """

  name: str
  build: Callable[[], keras.Model]
  batch: int
  cluster: str
  microbatches: int = 1
  policy: str = "float32"


def _transformer() -> keras.Model:
  return kernel_models.transformer(64, 6, 512, 8, 256, 16000, predicted=40)


CASES = (
  Case(
    "Inception-V3", lambda: zoo.build("inception_v3", 32).model, 32, "p100x4"
  ),
  Case("Transformer, 6 layers of 512", _transformer, 64, "v100x4", 4),
  Case(
    "Transformer, 6 layers of 512, mixed precision",
    _transformer,
    64,
    "a100x4-pcie",
    4,
    "mixed_float16",
  ),
)


def compared(case: Case) -> dict[str, object]:
  """Step times of both placements with kernel times, median of the seeds."""
  keras.mixed_precision.set_global_policy(case.policy)
  cluster = tfplace.cluster_preset(case.cluster)
  problems = {}
  for costs in ("kernels", "grappler"):
    graph = tfplace.extract(
      case.build(),
      cluster,
      batch_size=case.batch,
      microbatches=case.microbatches,
      costs=costs,
    )
    problems[costs] = tfplace.Problem(graph, cluster)
  true = tfplace.Simulator(problems["kernels"])
  found: dict[str, list[float]] = {}
  for costs, problem in problems.items():
    for seed in map(int, _SEEDS.value):
      print(case.name, costs, seed, file=sys.stderr, flush=True)
      result = tfplace.place(problem, "auto", _BUDGET_S.value, seed)
      devices = result.placement.devices[None]
      step = true.evaluate(devices)[0].step_time_us
      found.setdefault(costs, []).append(step / 1e3)
  by_seed = [
    g / k for k, g in zip(found["kernels"], found["grappler"], strict=True)
  ]
  return {
    "model": case.name,
    "cluster": case.cluster,
    "microbatches": case.microbatches,
    "ops": problems["kernels"].graph.num_ops,
    "step_ms": found,
    "lost": statistics.median(by_seed),
  }


def main(_: list[str]) -> None:
  results = [compared(case) for case in CASES]
  settings = {"budget_s": _BUDGET_S.value, "seeds": _SEEDS.value}
  text = json.dumps({**settings, "rows": results}, indent=1) + "\n"
  pathlib.Path(_OUT.value).write_text(text, encoding="utf-8")
  shown = table.Table("model", "cluster", "found with Grappler", "with kernels")
  shown.add_column("ratio")
  for row in results:
    ms = row["step_ms"]
    cells = (
      f"{statistics.median(ms[c]):.1f} ms" for c in ("grappler", "kernels")
    )
    shown.add_row(row["model"], row["cluster"], *cells, f"{row['lost']:.3f}")
  console.Console().print(shown)


if __name__ == "__main__":
  app.run(main)
