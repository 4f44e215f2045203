"""Step times of `auto` on equal and unequal devices, beside those by hand.

For each model and cluster:

- one device: the whole step on the fastest accelerator,
- unsplit: `auto` without microbatches,
- data parallel: over all devices, in equal microbatches or in sizes by the
  devices' speed,
- by hand: the best of one device, data parallelism, pipelines and their product
  on the best subset of equal devices, with the best number of microbatches and
  order of ops; where one accelerator does not hold the step, also with one
  microbatch in flight on it,
- auto: searched for `--budget_s`, with its choice of microbatches.

  python -m benchmarks.run_auto
  python -m benchmarks.run_auto --models=bert_base --clusters=v100x2+p100x2
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from benchmarks.sets import Graphs, trained
from tfplace import placers
from tfplace.bin import cli
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph import Cluster, Problem
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.cluster import with_max_memory
from tfplace.graph.evaluation import Result
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.order import ARRIVAL, ORDERS
from tfplace.hardware.presets import cluster_preset
from tfplace.plan import variant_search
from tfplace.plan.config import PlanConfig
from tfplace.plan.proposals import proposed_sizes
from tfplace.plan.stages import Stages
from tfplace.plan.variants import StepVariant

_SLOW_BYTES_PER_US = 1250.0  # 10 Gb/s
_BY_HAND = ("data_parallel", "pipeline", "hybrid")
_ONE_DEVICE_S = 10.0


def _slow_network() -> Cluster:
  """Two hosts of four V100s, joined by 10 Gb/s."""
  cluster = cluster_preset("2*v100x4")
  links = tuple(
    dataclasses.replace(link, bandwidth_bytes_per_us=_SLOW_BYTES_PER_US)
    if host_of(link.src) != host_of(link.dst)
    else link
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)


def _small_memory(preset: str, gib: int) -> Cluster:
  cluster = cluster_preset(preset)
  names = [device.name for device in cluster.devices if not device.is_cpu]
  return with_max_memory(cluster, dict.fromkeys(names, f"{gib}GiB"))


CLUSTERS = {
  "2*v100x4-10Gb/s": _slow_network,
  "k80x4-6GiB": lambda: _small_memory("k80x4", 6),
  "v100x1-4GiB": lambda: _small_memory("v100x1", 4),
}
EQUAL = "v100x4"
LABELS = {
  "gpt_medium": "GPT, 12 layers of 512",
  "bert_base": "BERT, 12 layers of 768",
  "vit": "ViT-S/16",
  "resnet50_gn": "ResNet-50, GroupNormalization",
  "unet": "U-Net",
  "translator": "Transformer, 6 + 6 layers of 512",
}

OPTIONS = Options("run_auto", __doc__)
OPTIONS.add(
  "models",
  list(LABELS),
  "Models of models.py.",
)
OPTIONS.add(
  "clusters",
  [EQUAL, "v100x2+p100x2", "a100x4+v100x4", *CLUSTERS],
  "Presets, or clusters of this module.",
)
OPTIONS.add("microbatches", ["1", "2", "4", "8", "16"], "Numbers by hand.")
OPTIONS.add("order", AUTO, "Order of ops of `auto`.", choices=(*ORDERS, AUTO))
OPTIONS.add_search(20.0, "auto.json")


def find(name: str) -> Cluster:
  """Returns the cluster of a name."""
  return CLUSTERS[name]() if name in CLUSTERS else cluster_preset(name)


def main(values: flags.FlagValues) -> None:
  """Measures missing rows; saves after each.

  Raises:
    UsageError: the unsplit step is not among the microbatches.
  """
  for name in values.clusters:
    find(name)
  counts = sorted(set(lib.numbers("microbatches", values.microbatches, 1)))
  seeds = lib.numbers("seeds", values.seeds)
  if 1 not in counts:
    raise cli.UsageError(
      "--microbatches: 1, the unsplit step, must be among them"
    )
  cli.load_tensorflow()
  for name in values.models:
    trained(name)
  settings = {"budget_s": values.budget_s, "order": values.order}
  rows = lib.Rows(
    values.out, {**settings, "microbatches": counts}, seeds=seeds[:1]
  )
  for name in values.models:
    graphs = Graphs(name, values.clusters, values.graph_cache_dir, find=find)
    for cluster in values.clusters:
      row = Row(graphs, cluster, counts, values.budget_s, seeds[0])
      rows.row(f"{name}/{cluster}", lambda r=row: r.measure(values.order))
  for table in tables(rows.found).values():
    print(f"\n{table}")


@dataclasses.dataclass
class Row:
  """One model on one cluster.

  Attributes:
    graphs: graphs of the step.
    cluster: name of the cluster.
    counts: numbers of microbatches by hand.
    budget_s: seconds of each search.
    seed: seed of the searches.
  """

  graphs: Graphs
  cluster: str
  counts: list[int]
  budget_s: float
  seed: int

  def measure(self, order: str) -> dict[str, dict]:
    """Returns the columns."""
    problems = {
      count: self.problem(count=count, sizes=None) for count in self.counts
    }
    return {
      "ops": {count: p.graph.num_ops for count, p in problems.items()},
      "one device": self.one_device(problems[1]),
      "unsplit": self._placed(problems[1], "auto", ARRIVAL),
      "by hand": self._by_hand(problems),
      "data parallel": self.data_parallel(problems),
      "auto": self.auto(order),
    }

  def problem(self, **changes: Any) -> Problem:
    config = dataclasses.replace(self.graphs.allows, **changes)
    return self.graphs.problem(config, self.cluster)

  def open(self, variant: VariantConfig, show: Stages) -> StepVariant:
    """The step variants among which `auto` chooses."""
    return StepVariant(self.graphs.problem(variant, self.cluster))

  def one_device(self, problem: Problem) -> dict:
    found = placed(problem, "single", _ONE_DEVICE_S, 0)
    if found.get("main_kind", "").startswith("CPU"):
      return {"oom": "no accelerator holds the step"}
    return found

  def data_parallel(self, problems: Mapping[int, Problem]) -> dict:
    """The best numbers and sizes of microbatches over all devices."""
    tried = {str(count): p for count, p in problems.items() if count > 1}
    for sizes in proposed_sizes(problems[1]):
      tried[", ".join(map(str, sizes))] = self.problem(
        count=len(sizes), sizes=sizes
      )
    return _fastest(
      {**self._in_best_order(problem, "data_parallel"), "microbatches": name}
      for name, problem in tried.items()
    )

  def _by_hand(self, problems: Mapping[int, Problem]) -> dict:
    """The best rule on the best subset of equal devices."""
    rows = []
    for label, subset in equal_subsets(problems[1].cluster):
      for count, problem in problems.items():
        part = Problem(problem.graph, subset)
        for strategy in ("single",) if count == 1 else _BY_HAND:
          found = self._in_best_order(part, strategy)
          about = {"strategy": strategy, "microbatches": count}
          rows.append({**found, **about, "devices": label})
    fitting = [row for row in rows if "step_time_us" in row]
    if all(row["main_kind"].startswith("CPU") for row in fitting):
      fitting += self._accumulated()
    return _fastest(fitting)

  def _accumulated(self) -> Iterator[dict]:
    """Yields the step on one device, with one microbatch in flight."""
    for count in self.counts:
      if count > 1:
        problem = self.problem(count=count, max_in_flight=1)
        found = self._in_best_order(problem, "single")
        about = {"strategy": "single", "microbatches": count}
        yield {**found, **about, "max_in_flight": 1, "devices": "one"}

  def _in_best_order(self, problem: Problem, strategy: str) -> dict:
    return _fastest(self._placed(problem, strategy, o) for o in ORDERS)

  def _placed(self, problem: Problem, strategy: str, order: str) -> dict:
    return placed(problem, strategy, self.budget_s, self.seed, order)

  def auto(self, order: str) -> dict[str, Any]:
    """`auto`, which also chooses the microbatches, as the commands do."""

    config = PlanConfig(
      budget_s=self.budget_s,
      gap=0.0,
      seed=self.seed,
      baselines=(),
      order=order,
      variant=self.graphs.allows,
      chooses_microbatches=True,
    )
    plan = variant_search.choose_variant(self, config, Stages())
    choice = plan.choice.variant
    return {
      **saved(plan.best, plan.problem.cluster),
      "microbatches": choice.count,
      "microbatch_sizes": choice.sizes,
      "max_in_flight": choice.max_in_flight,
      "seconds": sum(trial.seconds for trial in plan.choice.trials),
    }


def _fastest(rows: Any) -> dict:
  rows = [*rows] or [{"oom": "nothing fits"}]
  return min(rows, key=lambda row: row.get("step_time_us", math.inf))


def placed(
  problem: Problem,
  strategy: str,
  budget_s: float,
  seed: int,
  order: str = ARRIVAL,
  **limits: Any,
) -> dict:
  """One placer's result; `oom` where nothing that it tried fits."""
  try:
    found = placers.place(
      *(problem, strategy), budget_s=budget_s, seed=seed, order=order, **limits
    )
  except InfeasibleError as error:
    return {"oom": str(error)}
  except TfplaceError as error:  # a placer of split steps only
    return {"error": str(error)}
  return saved(found, problem.cluster)


def saved(found: Result, cluster: Cluster) -> dict[str, Any]:
  """Selects the saved part of a placer's result."""
  busy = found.evaluation.busy_us
  kinds = {device.name: device.kind for device in cluster.devices}
  return {
    "step_time_us": found.evaluation.step_time_us,
    "order": found.order,
    "seconds": found.seconds,
    "evaluations": found.evaluations,
    "main_kind": kinds[max(busy, key=lambda name: busy[name])],
  }


def host_of(device: str) -> str:
  """The job and task of a device."""
  return device.partition("/device:")[0]


def equal_subsets(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
  """Yields names and clusters: each kind of GPU on all hosts and on one.

  The CPUs of the hosts that remain stay, too.
  """
  gpus = [device for device in cluster.devices if not device.is_cpu]
  for kind in dict.fromkeys(device.kind for device in gpus):
    hosts = [host_of(device.name) for device in gpus if device.kind == kind]
    for kept in dict.fromkeys([tuple(dict.fromkeys(hosts)), (hosts[0],)]):
      devices = tuple(
        device
        for device in cluster.devices
        if host_of(device.name) in kept
        and (device.is_cpu or device.kind == kind)
      )
      names = {device.name for device in devices}
      links = tuple(
        link
        for link in cluster.links
        if link.src in names and link.dst in names
      )
      number = sum(not device.is_cpu for device in devices)
      yield (
        f"{number} {kind}",
        dataclasses.replace(cluster, devices=devices, links=links),
      )


def _us(row: Mapping[str, dict], *columns: str) -> float:
  """The least step time of some columns; infinite where nothing fits."""
  return min(row.get(c, {}).get("step_time_us", math.inf) for c in columns)


def gain(row: Mapping[str, dict], *columns: str) -> float:
  """The least step time of some columns over that of `auto`."""
  return _us(row, *columns) / _us(row, "auto")


def by_hand_gain(row: Mapping[str, dict]) -> float:
  """The best step time by hand over that of `auto`.

  A placement that falls back to the CPU counts as none.
  """
  columns = ("one device", "by hand", "data parallel")
  on_gpus = [c for c in columns if not _is_on_cpu(row.get(c, {}))]
  return gain(row, *on_gpus) if on_gpus else math.inf


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns mean and least gains by cluster."""
  rows = {tuple(key.split("/", 1)): row for key, row in found["rows"].items()}
  clusters = list(dict.fromkeys(cluster for _, cluster in rows))
  of = {c: [row for (_, o), row in rows.items() if o == c] for c in clusters}
  lines = []
  for cluster, each in of.items():
    compared = ("one device", "unsplit")
    cells = [
      lib.mean_and_least([g for g in gains if math.isfinite(g)])
      for gains in (
        *([gain(row, column) for row in each] for column in compared),
        [by_hand_gain(row) for row in each],
      )
    ]
    lines.append([f"`{cluster}`", *cells])
  heads = ("devices", "one GPU", "unsplit", "gain")
  return {
    "auto_clusters": f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  }


def _is_on_cpu(found: Mapping[str, Any]) -> bool:
  return found.get("main_kind", "").startswith("CPU")


if __name__ == "__main__":
  OPTIONS.run(main)
