"""Speedup of microbatched steps, on models that people train.

For each model of `models/reference.py` and each cluster: one device, the best
unsplit placement (`auto`), data parallelism, a pipeline and their product (each
with the number of microbatches and the order of ops that suit it best), and
`auto` with both chosen. All searches get the same seconds. Step times are
simulated, with kernel costs. Each row is saved as soon as it is there, and
a run that was cut off goes on. Writes JSON, and a table in Markdown.

  python -m benchmarks.microbatches.run_models
  python -m benchmarks.microbatches.run_models --models=bert_small \\
      --clusters=v100x4
"""

import dataclasses
import importlib
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from absl import flags

from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.microbatches import models_report
from tfplace import placers
from tfplace.bin import cli
from tfplace.core import Cluster, OpGraph, Problem
from tfplace.core.evaluation import Result
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.order import ARRIVAL, AUTO, ORDERS
from tfplace.core.presets import cluster_preset
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.plan import (
  PlanConfig,
  graph_cache,
  graph_keys,
  microbatches,
  sources,
  variants,
)

if TYPE_CHECKING:
  import keras

  from benchmarks.models.reference import Trained
  from tfplace.extraction.traced import TracedStep

MODELS = pathlib.Path(__file__).parents[1] / "models"


def define_search(options: Options, out: str) -> None:
  """Adds the flags of a benchmark of searches; `out` is its file's name."""
  options.add(
    "budget_s",
    60.0,
    "Seconds of each search, of all numbers of microbatches together.",
    least=0,
  )
  options.add("seed", 0, "Seed of the searches.", least=0)
  options.add(
    "order",
    AUTO,
    "In which devices take their ready ops: of `auto`; placements by hand are"
    " in the better one always.",
    choices=(*ORDERS, AUTO),
  )
  options.add(
    "graph_cache_dir",
    graph_cache.default_directory(),
    "Where extracted graphs are kept between runs; empty: nowhere.",
  )
  options.out(out)


OPTIONS = Options("run_models", __doc__)
OPTIONS.add("models", [], "Models of models/reference.py; all where left out.")
OPTIONS.add("clusters", ["v100x4", "p100x4", "a100x8"], "Cluster presets.")
OPTIONS.add("microbatches", ["1", "2", "4", "8"], "Numbers that are tried.")
define_search(OPTIONS, "split_step.json")


def main(values: flags.FlagValues) -> None:
  """Runs what is missing of each row; saves after each."""
  cli.check_writable(values.out)
  for name in values.clusters:
    cluster_preset(name)
  counts = wanted_counts(values)
  cli.load_tensorflow()
  from benchmarks.models import reference

  known = reference.MODELS
  command.check_names("models", values.models, known)
  rows = open_rows(values, counts)
  found = {}
  for name in values.models or known:
    graphs = Graphs(name, values.clusters, values.graph_cache_dir)
    for cluster in values.clusters:
      found[name, cluster] = rows.row(
        f"{name}/{cluster}",
        lambda g=graphs, c=cluster: measure(values, g, c, counts),
      )
  report.write(values.out, models_report.markdown(found, values.budget_s))


def wanted_counts(values: flags.FlagValues) -> list[int]:
  """The numbers of `--microbatches`.

  Raises:
    UsageError: one is no whole number of at least 1, or 1 is not among them.
  """
  for text in values.microbatches:
    if not cli.is_count(text) or int(text) < 1:
      raise cli.UsageError(
        f"--microbatches: {text!r} is no whole number of at least 1"
      )
  counts = sorted({int(text) for text in values.microbatches})
  if 1 not in counts:
    raise cli.UsageError(
      "--microbatches: 1, the unsplit step, must be among them"
    )
  return counts


def open_rows(
  values: flags.FlagValues, counts: list[int]
) -> saved_rows.SavedRows:
  """The rows that are there.

  Raises:
    UsageError: they are of other settings.
  """
  settings = {
    "budget_s": values.budget_s,
    "seed": values.seed,
    "microbatches": counts,
    "order": values.order,
  }
  return saved_rows.SavedRows(values.out, settings)


class StepGraphs(Protocol):
  """The graphs of one model's step."""

  @property
  def allows(self) -> MicrobatchConfig:
    """The whole step, with what splits of it may do."""

  def problem(self, microbatches: MicrobatchConfig, cluster: str) -> Problem:
    """The step split so, with the cluster's costs."""


@dataclasses.dataclass
class Graphs:
  """The graphs of a model, by microbatches and cluster.

  A step is traced once for all clusters. What lies in the cache is known by
  the bytes of the module that has the models.

  Attributes:
    name: of the model.
    clusters: names of clusters, whose devices are costed.
    cache_dir: where graphs are kept between runs, or nothing.
    module: of `benchmarks/models`; its `MODELS` has the model.
    find: the cluster of a name; presets by default.
  """

  name: str
  clusters: Sequence[str]
  cache_dir: str | None
  module: str = "reference"
  find: Callable[[str], Cluster] = cluster_preset
  _found: dict[tuple[MicrobatchConfig, str], OpGraph] = dataclasses.field(
    default_factory=dict
  )

  def problem(self, microbatches: MicrobatchConfig, cluster: str) -> Problem:
    """The step split so, with the cluster's costs.

    Raises:
      ExtractionError: it cannot be split.
    """
    if (microbatches, cluster) not in self._found:
      self._load(microbatches)
    return Problem(self._found[microbatches, cluster], self.find(cluster))

  @property
  def allows(self) -> MicrobatchConfig:
    """The whole step, with what splits of it may do."""
    return MicrobatchConfig(
      allow_batch_statistics=self._trained.has_batch_statistics
    )

  @property
  def _trained(self) -> "Trained":
    module = importlib.import_module(f"benchmarks.models.{self.module}")
    return module.MODELS[self.name]

  def _load(self, microbatches: MicrobatchConfig) -> None:
    trained = self._trained
    cache = graph_cache.GraphCache(self.cache_dir) if self.cache_dir else None
    began, traced = time.perf_counter(), None
    for preset in self.clusters:
      cluster = self.find(preset)
      key = cache and graph_keys.content_key(
        "module",
        str(MODELS / f"{self.module}.py"),
        cluster,
        batch_size=trained.batch_size,
        sizes={self.name: 1},
        microbatches=microbatches,
      )
      graph = cache.load(key) if cache and key else None
      if graph is None:
        traced = traced or trace(
          trained.build, trained.batch_size, microbatches
        )
        graph = sources.op_graph(traced, cluster)
        if cache and key:
          cache.store(key, graph)
      self._found[microbatches, preset] = graph
    taken = time.perf_counter() - began
    print(
      f"{self.name}, {microbatches.count} microbatches: {graph.num_ops:,} ops"
      f" in {taken:.0f} s",
      flush=True,
    )


def trace(
  build: Callable[[], "keras.Model"],
  batch_size: int,
  microbatches: MicrobatchConfig,
) -> "TracedStep":
  """The step of a model that is made for it, and then let go."""
  from tfplace.extraction import keras_step

  with keras_step.fresh_names():
    return keras_step.trace_keras(
      build(), batch_size, microbatches=microbatches
    )


def measure(
  values: flags.FlagValues, graphs: Graphs, cluster: str, counts: list[int]
) -> dict:
  """The columns of one model on one cluster."""
  problems = {
    count: graphs.problem(
      dataclasses.replace(graphs.allows, count=count), cluster
    )
    for count in counts
  }
  return {
    "ops": {count: p.graph.num_ops for count, p in problems.items()},
    "one device": one_device(problems[1]),
    "unsplit": placed(problems[1], "auto", values.budget_s, values.seed),
    **{
      strategy: best_of(
        {
          count: in_best_order(problem, strategy, values.budget_s, values.seed)
          for count, problem in problems.items()
        }
      )
      for strategy in models_report.BY_HAND
    },
    "auto": chosen(graphs, cluster, values),
  }


def one_device(problem: Problem) -> dict:
  """The whole step on one accelerator, where it fits."""
  found = placed(problem, "single", 10.0, 0)
  if found.get("main_kind") == "CPU":
    return {"oom": "no accelerator holds the step"}
  return found


def in_best_order(
  problem: Problem, strategy: str, budget_s: float, seed: int
) -> dict:
  """The better result of one placer in each order of ops."""
  found = [placed(problem, strategy, budget_s, seed, o) for o in ORDERS]
  return min(found, key=lambda f: f.get("step_time_us", math.inf))


def placed(
  problem: Problem,
  strategy: str,
  budget_s: float,
  seed: int,
  order: str = ARRIVAL,
) -> dict:
  """One placer's result; `oom` where nothing that it tried fits."""
  try:
    found = placers.place(problem, strategy, budget_s, seed, order=order)
  except InfeasibleError as error:
    return {"oom": str(error)}
  except TfplaceError as error:  # a placer of split steps only
    return {"error": str(error)}
  return of_result(found, problem.cluster)


def of_result(found: Result, cluster: Cluster) -> dict[str, Any]:
  """Selects the saved part of a placer's result."""
  busy = found.evaluation.busy_us
  kinds = {device.name: device.kind for device in cluster.devices}
  return {
    "step_time_us": found.evaluation.step_time_us,
    "order": found.order,
    "seconds": found.seconds,
    "evaluations": found.evaluations,
    "peak_memory_bytes": max(found.evaluation.peak_memory_bytes.values()),
    "bytes_moved": found.evaluation.bytes_moved,
    "main_kind": kinds[max(busy, key=lambda name: busy[name])],
  }


def best_of(by_count: Mapping[int, dict]) -> dict:
  """The fastest of several numbers of microbatches, and what each took."""
  times = {
    count: found["step_time_us"]
    for count, found in by_count.items()
    if "step_time_us" in found
  }
  if not times:
    return by_count[max(by_count)]
  count = min(times, key=lambda c: times[c])
  return {**by_count[count], "microbatches": count, "step_times_us": times}


def chosen(
  graphs: StepGraphs, cluster: str, values: flags.FlagValues
) -> dict[str, Any]:
  """`auto`, which also chooses the microbatches, as the commands do."""

  def open_variant(microbatches: MicrobatchConfig) -> variants.StepVariant:
    return variants.StepVariant(graphs.problem(microbatches, cluster))

  config = PlanConfig(
    budget_s=values.budget_s,
    gap=0.0,
    seed=values.seed,
    baselines=(),
    order=values.order,
    microbatches=graphs.allows,
    chooses_microbatches=True,
  )
  plan, _ = microbatches.choose_variant(open_variant, config)
  tried = plan.choice.trials
  return {
    **of_result(plan.best, plan.problem.cluster),
    "microbatches": plan.choice.microbatches.count,
    "microbatch_sizes": plan.choice.microbatches.sizes,
    "max_in_flight": plan.choice.microbatches.max_in_flight,
    "seconds": sum(trial.seconds for trial in tried),
    "step_times_us": {
      f"{_numbers(t.microbatches)} ({t.microbatches.in_flight})": t.step_time_us
      for t in tried
      if t.best is not None
    },
  }


def _numbers(microbatches: MicrobatchConfig) -> str:
  """The sizes of microbatches where they are given, or their number."""
  sizes = microbatches.sizes or [microbatches.count]
  return ", ".join(map(str, sizes))


if __name__ == "__main__":
  OPTIONS.run(main)
