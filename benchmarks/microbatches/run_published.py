"""The published rows with the batch split: expert against `auto` over k.

For each row of the published tables: the human expert's rules on the whole
step, and `auto`, which also chooses the number of microbatches, as the commands
do. Batch statistics are per microbatch where the model has them. Step times are
simulated, with kernel costs. Each row is saved as soon as it is there, and
a run that was cut off goes on. Writes JSON and a table in Markdown.

  python -m benchmarks.microbatches.run_published
  python -m benchmarks.microbatches.run_published --rows=RNNLM --gpus=v100
"""

import functools
import math
import re
import time

from absl import flags

from benchmarks.lib import published, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.microbatches import run_models
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.presets import cluster_preset
from tfplace.plan import sources

_HEADS = (
  *("row", "cluster", "ops", "expert", "auto", "microbatches", "whole step"),
  "expert / auto",
)


OPTIONS = Options("run_published", __doc__)
OPTIONS.add("rows", "", "Pattern of the rows' labels.")
OPTIONS.add(
  "gpus",
  [],
  "GPUs, of those of each row; left out: p100, or else the row's first.",
)
run_models.define_search(OPTIONS, "split_published.json")


def main(values: flags.FlagValues) -> None:
  """Runs what is missing of each row; saves after each."""
  cli.check_writable(values.out)
  jobs = wanted(values)
  cli.load_tensorflow()
  settings = {n: values[n].value for n in ("budget_s", "seed", "order")}
  rows = saved_rows.SavedRows(values.out, settings)
  found = {}
  for row, gpu in jobs:
    cluster = row.cluster(gpu)
    found[row.label, cluster] = rows.row(
      f"{row.label}/{cluster}", functools.partial(measure, values, row, cluster)
    )
  report.write(values.out, markdown(found))


def wanted(values: flags.FlagValues) -> list[tuple[published.Row, str]]:
  """Rows and their GPUs.

  Raises:
    UsageError: the flags name none.
  """
  rows = [r for r in published.ROWS if re.search(values.rows, r.label)]
  jobs = [
    (row, gpu)
    for row in rows
    for gpu in row.gpus
    if gpu in (values.gpus or ["p100" if "p100" in row.gpus else row.gpus[0]])
  ]
  if not jobs:
    raise cli.UsageError(
      f"--rows={values.rows!r} --gpus={','.join(values.gpus)}: no such row"
    )
  return jobs


class RowGraphs:
  """The graphs of a row, by the split; each is extracted once.

  Attributes:
    allows: the whole step, with what splits of it may do.
  """

  allows = MicrobatchConfig(allow_batch_statistics=True)

  def __init__(
    self, row: published.Row, cluster: str, cache_dir: str | None
  ) -> None:
    self._row, self._cluster, self._cache_dir = row, cluster, cache_dir
    self._found: dict[MicrobatchConfig, Problem] = {}

  def problem(self, microbatches: MicrobatchConfig, cluster: str) -> Problem:
    """The step split so.

    Raises:
      ExtractionError: it cannot be split.
    """
    if microbatches not in self._found:
      began = time.perf_counter()
      (graph,) = sources.extract_each(
        self._row.model,
        [self._cluster],
        batch_size=self._row.batch_size,
        sizes=self._row.sizes,
        cache_dir=self._cache_dir,
        microbatches=microbatches,
      )
      self._found[microbatches] = Problem(graph, cluster_preset(cluster))
      print(
        f"{self._row.label}, {microbatches.count} microbatches:"
        f" {graph.num_ops:,} ops in {time.perf_counter() - began:.0f} s",
        flush=True,
      )
    return self._found[microbatches]


def measure(values: flags.FlagValues, row: published.Row, cluster: str) -> dict:
  """The columns of one row."""
  graphs = RowGraphs(row, cluster, values.graph_cache_dir)
  whole = graphs.problem(graphs.allows, cluster)
  expert = run_models.placed(whole, "expert", values.budget_s, values.seed)
  auto = run_models.chosen(graphs, cluster, values)
  return {"ops": whole.graph.num_ops, "expert": expert, "auto": auto}


def markdown(rows: dict[tuple[str, str], dict]) -> str:
  """A line for each row, in milliseconds, then the geometric mean."""
  lines = []
  ratios = []
  for (label, cluster), row in rows.items():
    auto_us = row["auto"]["step_time_us"]
    expert_us = row["expert"].get("step_time_us", math.inf)
    whole_us = row["auto"]["step_times_us"].get("1 (1)", math.inf)
    ratio = expert_us / auto_us
    if math.isfinite(ratio):
      ratios.append(ratio)
    count = str(row["auto"]["microbatches"])
    cells = [label, cluster, f"{row['ops']:,}", _ms(expert_us), _ms(auto_us)]
    lines.append([*cells, count, _ms(whole_us), _ratio(ratio)])
  mean = _ratio(report.geometric_mean(ratios))
  ends = ["*geometric mean*", *[""] * (len(_HEADS) - 2), mean]
  return report.markdown(_HEADS, [*lines, ends])


def _ms(time_us: float) -> str:
  return f"{time_us / 1e3:.1f}" if math.isfinite(time_us) else "OOM"


def _ratio(ratio: float) -> str:
  return f"{ratio:.2f}" if math.isfinite(ratio) else ""


if __name__ == "__main__":
  OPTIONS.run(main)
