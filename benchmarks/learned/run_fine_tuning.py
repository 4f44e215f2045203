"""Fine-tunes the shipped policy on a graph, and places it and its variants.

For three models of the development set on which the shipped policy was not
trained: `tfplace-train --init_from=shipped` on the step for `--minutes`; then
`auto` at equal seconds on that step, on one of another batch and on one with
another layer: without a policy; with the shipped one; with it and the placement
that the training found; and with the tuned policy, which brings that placement.
Each row is saved as soon as it is there. Needs the extra `train`.

  python -m benchmarks.learned.run_fine_tuning
"""

import dataclasses
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

import tfplace
from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.microbatches import run_models
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.presets import cluster_preset
from tfplace.learned.found import starts
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.place import warm_up
from tfplace.placers.registry import LEARNED_IN_AUTO
from tfplace.plan import sources
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  import keras

STARTED = "shipped, started"
ARMS = ("without", "shipped", STARTED, "tuned")
OPTIONS = Options("run_fine_tuning", __doc__)
OPTIONS.add("models", [], "Names in TUNED; all where left out.")
OPTIONS.add("minutes", 10.0, "Minutes of each training.")
OPTIONS.add("budget_s", 10.0, "Seconds of auto.")
OPTIONS.add("seeds", ["0", "1"], "Seeds of the searches.")
OPTIONS.add("work_dir", None, "Graphs, checkpoints and policies.")
OPTIONS.out("fine_tuning.json")


@dataclasses.dataclass(frozen=True)
class Tuned:
  """A model whose step is tuned on.

  Attributes:
    path: "module:function" in `benchmarks/models`; the function takes a depth.
    depth, batch: of the step that is trained on.
    microbatches: of all steps.
    cluster: name of a preset.
  """

  path: str
  depth: int
  batch: int
  microbatches: int
  cluster: str

  def variants(self) -> Iterator[tuple[str, int, int]]:
    """Yields names, depths and batches; the first is trained on."""
    yield "itself", self.depth, self.batch
    yield "other batch", self.depth, 3 * self.batch // 2
    yield "one more layer", self.depth + 1, self.batch


TUNED = {
  "llama": Tuned("development:llama", 12, 16, 8, "v100x4"),
  "wav2vec": Tuned("second_holdout:wav2vec", 12, 16, 8, "v100x4"),
  "gmlp": Tuned("second_holdout:gmlp", 24, 64, 8, "2*v100x4"),
}


def main(values: flags.FlagValues) -> None:
  """Measures what is missing; saves after each variant."""
  command.check_names("models", values.models, TUNED)
  if not values.work_dir:
    raise cli.UsageError("--work_dir is missing")
  cli.check_writable(values.out)
  cli.load_tensorflow()
  settings = {
    "minutes": values.minutes,
    "budget_s": values.budget_s,
    "arms": list(ARMS),
  }
  saved = saved_rows.SavedRows(values.out, settings)
  found = {
    name: measured(name, TUNED[name], values, saved)
    for name in values.models or TUNED
  }
  report.write(values.out, table(found))


def measured(
  name: str,
  tuned: Tuned,
  values: flags.FlagValues,
  saved: saved_rows.SavedRows,
) -> dict[str, dict]:
  """Variant -> arm -> step times in us, one per seed."""
  folder = pathlib.Path(values.work_dir) / name
  found = {}
  for variant, depth, batch in tuned.variants():
    path = folder / f"{depth}x{batch}.json.gz"

    def row(path: pathlib.Path = path, step: Any = (depth, batch)) -> dict:
      graphs = [path, folder / f"{tuned.depth}x{tuned.batch}.json.gz"]
      for each, (deep, wide) in zip(
        graphs, (step, (tuned.depth, tuned.batch)), strict=True
      ):
        _extract(tuned, each, deep, wide)
      policy = folder / "policy"
      if not policy.exists():
        _train(graphs[1], tuned.cluster, folder, values.minutes)
      return _placed(path, tuned.cluster, policy, values)

    found[variant] = saved.row(f"{name}/{variant}", row)
  return found


def _extract(tuned: Tuned, path: pathlib.Path, depth: int, batch: int) -> None:
  """Writes a step's graph, if it is not there."""
  if path.exists():
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  module, name = tuned.path.split(":")
  build: Callable[[int], keras.Model] = getattr(
    __import__(f"benchmarks.models.{module}", fromlist=[name]), name
  )
  split = MicrobatchConfig(count=tuned.microbatches)
  traced = run_models.trace(lambda: build(depth), batch, split)
  graph = sources.op_graph(traced, cluster_preset(tuned.cluster))
  tfplace.save_graph(graph, path)


def _train(
  graph: pathlib.Path, cluster: str, folder: pathlib.Path, minutes: float
) -> None:
  subprocess.run(
    [
      *(sys.executable, "-m", "tfplace.bin.train", "--init_from=shipped"),
      *(f"--graphs={graph}", f"--cluster={cluster}", f"--minutes={minutes}"),
      f"--checkpoint_dir={folder / 'checkpoints'}",
      f"--export_dir={folder / 'policy'}",
    ],
    check=True,
  )


def _placed(
  path: pathlib.Path,
  cluster: str,
  policy: pathlib.Path,
  values: flags.FlagValues,
) -> dict[str, list[float]]:
  """Arm -> step times of `auto` in us."""
  graph, devices = tfplace.load_graph(path), cluster_preset(cluster)
  warm_up("auto", devices.has_message_costs)
  found: dict[str, list[float]] = {arm: [] for arm in ARMS}
  for seed in values.seeds:
    for arm in ARMS:
      learned = () if arm == "without" else LEARNED_IN_AUTO
      tuned = str(policy) if arm == "tuned" else None
      problem = Problem(graph, devices)
      budget = Budget(values.budget_s)  # It includes the reading of the start.
      start = starts(str(policy), problem) if arm == STARTED else None
      result = AutoPlacer(learned, tuned, start).place(
        problem, Simulator(problem), budget, int(seed)
      )
      found[arm].append(result.evaluation.step_time_us)
  return found


def table(found: dict[str, dict]) -> str:
  """Markdown: median ms by arm, and the gain of tuning."""
  heads = ["model", "step", "without, ms", *ARMS[1:], "shipped / tuned"]
  lines, gains = [], []
  for name, variants in found.items():
    for variant, arms in variants.items():
      ms = {arm: statistics.median(arms[arm]) / 1e3 for arm in ARMS}
      gains.append(ms["shipped"] / ms["tuned"])
      cells = [name, variant, *(f"{ms[arm]:.2f}" for arm in ARMS)]
      lines.append([*cells, f"{gains[-1]:.3f}"])
  mean = f"{report.geometric_mean(gains):.3f}"
  return report.markdown(
    heads, [*lines, ["*geometric mean*", *[""] * (len(heads) - 2), mean]]
  )


if __name__ == "__main__":
  OPTIONS.run(main)
