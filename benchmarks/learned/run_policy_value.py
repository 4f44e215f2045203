"""Whether the policy earns its place: `auto` with it and without it.

The same searches, seeds and seconds on one core, on the published rows or the
test members of synthetic families. TensorFlow is loaded before the clock
starts, for both, as it is where a model was just extracted. Each result is
saved as soon as it is there. Writes JSON and a table in Markdown.

  python -m benchmarks.learned.run_policy_value                      # hours
  python -m benchmarks.learned.run_policy_value --budgets_s=10 \\
      --rows='2-layer' --seeds=0
  python -m benchmarks.learned.run_policy_value --budgets_s=10 \\
      --test_members=cifar10,ptb
"""

import math
import pathlib
import statistics

from absl import app, flags

from benchmarks.lib import gpu_flags, published, saved_rows
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.models.families import TRAINING_SPLIT
from tfplace.placers.auto import AutoConfig, AutoPlacer
from tfplace.placers.place import warm_up
from tfplace.placers.registry import LEARNED_IN_AUTO
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parents[1]
ARMS = {"with": LEARNED_IN_AUTO, "without": ()}
# Zoo names of what the shipped policy was trained on other sizes or members of.
TRAINED = {name for name, _ in TRAINING_SPLIT} | {"nmt_family", "ptb"}
_BUDGETS_S = flags.DEFINE_list("budgets_s", ["10", "60", "300"], "Seconds.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the searches.")
_POLICY = flags.DEFINE_string(
  "policy", None, "Directory of an exported policy; the shipped one if none."
)
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "policy_value.json"), "JSON file to write."
)


def main(argv: list[str]) -> None:
  del argv
  saved_rows.pin_to_cores(1)
  rows = gpu_flags.rows()
  saved = saved_rows.SavedRows(
    _RESULT.value,
    {"gpu": gpu_flags.GPU.value, "policy": _POLICY.value or "shipped"},
  )
  measured = {row.label: measure_row(row, saved) for row in rows}
  report = "\n".join(table(measured)) + "\n"
  pathlib.Path(_RESULT.value).with_suffix(".md").write_text(
    report, encoding="utf-8"
  )
  print(report)


def measure_row(
  row: published.Row, saved: saved_rows.SavedRows
) -> dict[str, list[dict]]:
  """Budget -> one result per seed, of both arms."""
  problem = gpu_flags.problem_of(row)
  return {
    budget: [
      saved.row(
        f"{row.label}/{gpu_flags.cluster_of(row)}/{budget}/{seed}",
        lambda budget=budget, seed=seed: measure(
          problem, row, float(budget), int(seed)
        ),
      )
      for seed in _SEEDS.value
    ]
    for budget in _BUDGETS_S.value
  }


def measure(
  problem: Problem, row: published.Row, budget_s: float, seed: int
) -> dict:
  """Both arms, one after the other."""
  import tensorflow  # noqa: F401 (its loading is in no budget)

  warm_up("auto", problem.cluster.has_message_costs)
  result: dict = {
    "ops": problem.graph.num_ops,
    "family_trained": row.model in TRAINED,
  }
  for arm, learned in ARMS.items():
    # Asked however little time is left, which is not the default.
    placer = AutoPlacer(
      learned, _POLICY.value, config=AutoConfig(learned_least_s=0.0)
    )
    found = placer.place(problem, Simulator(problem), Budget(budget_s), seed)
    result[arm] = {
      "step_time_us": found.evaluation.step_time_us,
      "seconds": found.seconds,
      "evaluations": found.evaluations,
      "tried": {r.strategy: r.evaluation.step_time_us for r in found.tried},
      "skipped": dict(found.skipped),
    }
  return result


def table(measured: dict[str, dict[str, list[dict]]]) -> list[str]:
  """Markdown: per row and budget, ms without and with the policy."""
  budgets = _BUDGETS_S.value
  heads = ["model", "ops", "family trained on"]
  for budget in budgets:
    heads += [f"{budget} s: without", "with", "without / with"]
  lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
  for label, by_budget in measured.items():
    first = by_budget[budgets[0]][0]
    cells = [label, f"{first['ops']:,}"]
    cells.append("yes" if first["family_trained"] else "no")
    for budget in budgets:
      found = by_budget[budget]
      cells += [f"{median(found, a) / 1e3:.1f}" for a in ("without", "with")]
      cells.append(f"{gain(found):.3f}")
    lines.append("| " + " | ".join(cells) + " |")
  for name, least in (("all", 0), ("over 5,000 ops", 5000)):
    cells = [f"*geometric mean, {name}*", "", ""]
    for budget in budgets:
      logs = [
        math.log(gain(found[budget]))
        for found in measured.values()
        if found[budget][0]["ops"] > least
      ]
      mean = math.exp(statistics.fmean(logs)) if logs else math.nan
      cells += ["", "", f"{mean:.3f}"]
    lines.append("| " + " | ".join(cells) + " |")
  return lines


def median(found: list[dict], arm: str) -> float:
  """Median step time over the seeds, us."""
  return statistics.median(result[arm]["step_time_us"] for result in found)


def gain(found: list[dict]) -> float:
  """How many times as fast the step is with the policy."""
  return median(found, "without") / median(found, "with")


if __name__ == "__main__":
  app.run(main)
