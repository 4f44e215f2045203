"""Placements on devices that differ: by hand, data parallel, and `auto`.

For each model of `models/reference.py` and each cluster of `CLUSTERS`:

- by hand: the best of one device, data parallelism, pipelines and their product
  on the best subset of equal devices (of a kind, on all hosts or on one), with
  the best number of microbatches and order of ops; where one accelerator does
  not hold the step, also with one microbatch in flight on it,
- data parallel: over all devices, with microbatches by their speed, equal ones
  or of sizes by it,
- auto: searched for `--budget_s`, with its choice of microbatches.

Step times are simulated, with kernel costs. Each row is saved as soon as it is
there, and a run that was cut off goes on. Writes JSON, and a table in Markdown.

  python -m benchmarks.placement.run_unequal
  python -m benchmarks.placement.run_unequal --models=bert_base \\
      --clusters=v100x2+p100x2
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from absl import flags

from benchmarks.lib import command, report
from benchmarks.lib.command import Options
from benchmarks.microbatches import models_report, run_models
from benchmarks.microbatches.run_models import Graphs
from tfplace.bin import cli
from tfplace.core import Cluster, Problem
from tfplace.core.cluster import with_max_memory
from tfplace.core.presets import cluster_preset
from tfplace.plan.size_proposals import proposed_sizes

_SLOW_BYTES_PER_US = 1250.0  # 10 Gb/s


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
  "v100x2+p100x2": lambda: cluster_preset("v100x2+p100x2"),
  "a100x4+v100x4": lambda: cluster_preset("a100x4+v100x4"),
  "2*v100x4, 10 Gb/s": _slow_network,
  "k80x4, 6 GiB": lambda: _small_memory("k80x4", 6),
  "v100x1, 4 GiB": lambda: _small_memory("v100x1", 4),
}
# In --clusters, which commas separate.
SHORT = {name.replace(", ", "-").replace(" ", ""): name for name in CLUSTERS}

OPTIONS = Options("run_unequal", __doc__)
OPTIONS.add(
  "models",
  ["bert_base", "gpt_medium", "vit", "resnet50_gn", "unet", "translator"],
  "Models of models/reference.py.",
)
OPTIONS.add("clusters", list(SHORT), "Clusters of this module.")
OPTIONS.add("microbatches", ["1", "2", "4", "8", "16"], "Numbers by hand.")
run_models.define_search(OPTIONS, "unequal.json")


def main(values: flags.FlagValues) -> None:
  """Runs what is missing of each row; saves after each."""
  cli.check_writable(values.out)
  command.check_names("clusters", values.clusters, SHORT)
  counts = run_models.wanted_counts(values)
  cli.load_tensorflow()
  from benchmarks.models import reference

  command.check_names("models", values.models, reference.MODELS)
  rows = run_models.open_rows(values, counts)
  found = {}
  for name in values.models:
    for short in values.clusters:
      cluster = SHORT[short]
      graphs = Graphs(
        name, [cluster], values.graph_cache_dir, find=lambda c: CLUSTERS[c]()
      )
      found[name, cluster] = rows.row(
        f"{name}/{cluster}",
        lambda g=graphs, c=cluster: measure(values, g, c, counts),
      )
  report.write(values.out, markdown(found, values.budget_s))


def measure(
  values: flags.FlagValues, graphs: Graphs, cluster: str, counts: list[int]
) -> dict[str, dict]:
  """The columns of one model on one cluster."""
  problems = {}
  for count in counts:
    config = dataclasses.replace(graphs.allows, count=count)
    problems[count] = graphs.problem(config, cluster)
  return {
    "by hand": _by_hand(values, graphs, cluster, problems),
    "data parallel": _data_parallel(values, graphs, cluster, problems),
    "auto": run_models.chosen(graphs, cluster, values),
  }


def _data_parallel(
  values: flags.FlagValues,
  graphs: Graphs,
  cluster: str,
  problems: Mapping[int, Problem],
) -> dict:
  """The best numbers and sizes of microbatches over all devices."""
  tried = {str(count): problem for count, problem in problems.items()}
  for sizes in proposed_sizes(problems[1]):
    config = dataclasses.replace(graphs.allows, count=len(sizes), sizes=sizes)
    tried[", ".join(map(str, sizes))] = graphs.problem(config, cluster)
  rows = [
    {**_in_best_order(values, problem, "data_parallel"), "microbatches": name}
    for name, problem in tried.items()
    if name != "1"
  ]
  return min(rows, key=lambda row: row.get("step_time_us", math.inf))


def _by_hand(
  values: flags.FlagValues,
  graphs: Graphs,
  cluster: str,
  problems: Mapping[int, Problem],
) -> dict:
  """The best rule on the best subset of equal devices."""
  rows = [
    {**found, "strategy": strategy, "microbatches": count, "devices": label}
    for label, subset in equal_subsets(problems[1].cluster)
    for count, problem in problems.items()
    for strategy in (["single"] if count == 1 else models_report.BY_HAND)
    if "step_time_us"
    in (
      found := _in_best_order(values, Problem(problem.graph, subset), strategy)
    )
  ]
  if all(row["main_kind"].startswith("CPU") for row in rows):
    rows += _accumulated(values, graphs, cluster, problems)
  if not rows:
    return {"oom": "no subset of equal devices holds the step"}
  return min(rows, key=lambda row: row["step_time_us"])


def _accumulated(
  values: flags.FlagValues,
  graphs: Graphs,
  cluster: str,
  problems: Mapping[int, Problem],
) -> Iterator[dict]:
  """Yields the step on one device, with one microbatch in flight."""
  for count in problems:
    if count > 1:
      config = dataclasses.replace(graphs.allows, count=count, max_in_flight=1)
      problem = graphs.problem(config, cluster)
      found = _in_best_order(values, problem, "single")
      if "step_time_us" in found:
        more = {"microbatches": count, "max_in_flight": 1}
        yield {**found, **more, "strategy": "single", "devices": "one"}


def _in_best_order(
  values: flags.FlagValues, problem: Problem, strategy: str
) -> dict:
  return run_models.in_best_order(
    problem, strategy, values.budget_s, values.seed
  )


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
    chosen = dict.fromkeys([tuple(dict.fromkeys(hosts)), (hosts[0],)])
    for kept in chosen:
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


HEADS = (
  *("model", "cluster", "by hand", "how", "data parallel over all", "auto"),
  *("its microbatches", "best by hand / auto"),
)


def ratio(row: Mapping[str, dict]) -> float:
  """The better of both by hand over `auto`; NaN where one is missing."""
  by_hand = min(
    row[name].get("step_time_us", math.inf)
    for name in ("by hand", "data parallel")
  )
  found = by_hand / row["auto"].get("step_time_us", math.nan)
  return found if math.isfinite(found) else math.nan


def markdown(
  rows: Mapping[tuple[str, str], Mapping[str, dict]], budget_s: float
) -> str:
  """A line for each row, then the geometric mean and the least ratio."""
  lines = [[*key, *_cells(row)] for key, row in rows.items()]
  known = [r for r in map(ratio, rows.values()) if not math.isnan(r)]
  least = min(known, default=math.nan)
  mean = report.geometric_mean(known)
  return (
    f"Simulated ms per step (microbatches), searches of {budget_s:g} s.\n\n"
    + report.markdown(HEADS, lines)
    + f"\n\n*best by hand / auto*: geometric mean {mean:.2f}, least"
    f" {least:.2f}.\n"
  )


def _cells(row: Mapping[str, dict]) -> list[str]:
  hand, ratio_ = row["by hand"], ratio(row)
  how = f"{hand['strategy']}, {hand['devices']}" if "strategy" in hand else "-"
  return [
    models_report.shown(hand, with_count=True),
    how,
    models_report.shown(row["data parallel"], with_count=True),
    models_report.shown(row["auto"]),
    models_report.split(row["auto"]),
    "-" if math.isnan(ratio_) else f"{ratio_:.2f}",
  ]


if __name__ == "__main__":
  OPTIONS.run(main)
