"""Compares `auto` with and without learned placers.

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

import statistics

from absl import flags

from benchmarks.lib import one_gpu, published, report, saved_rows
from benchmarks.lib.command import Options
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.models.families import TRAINING_SPLIT
from tfplace.placers.auto import AutoConfig, AutoPlacer
from tfplace.placers.place import warm_up
from tfplace.placers.registry import LEARNED_IN_AUTO
from tfplace.simulate import Simulator

ARMS = {"with": LEARNED_IN_AUTO, "without": ()}
# Zoo names of what the shipped policy was trained on other sizes or members of.
TRAINED = {name for name, _ in TRAINING_SPLIT} | {"nmt_family", "ptb"}
OPTIONS = Options("run_policy_value", __doc__, one_gpu.VALUES)
_BUDGETS_S = OPTIONS.add("budgets_s", ["10", "60", "300"], "Seconds.")
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds of the searches.")
_POLICY = OPTIONS.add(
  "policy", None, "Directory of an exported policy; the shipped one if none."
)
_OUT = OPTIONS.out("policy_value.json")


def main(_: flags.FlagValues) -> None:
  saved_rows.pin_to_cores(1)
  rows = one_gpu.rows()
  saved = saved_rows.SavedRows(
    _OUT.value,
    {"gpu": one_gpu.GPU.value, "policy": _POLICY.value or "shipped"},
  )
  measured = {row.label: measure_row(row, saved) for row in rows}
  report.write(_OUT.value, table(measured))


def measure_row(
  row: published.Row, saved: saved_rows.SavedRows
) -> dict[str, list[dict]]:
  """Budget -> one result per seed, of both arms."""
  problem = one_gpu.problem_of(row)
  return {
    budget: [
      saved.row(
        f"{row.label}/{one_gpu.cluster_of(row)}/{budget}/{seed}",
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


def table(measured: dict[str, dict[str, list[dict]]]) -> str:
  """Markdown: per row and budget, ms without and with the policy."""
  budgets = _BUDGETS_S.value
  heads = ["model", "ops", "family trained on"]
  for budget in budgets:
    heads += [f"{budget} s: without", "with", "without / with"]
  lines = []
  for label, by_budget in measured.items():
    first = by_budget[budgets[0]][0]
    cells = [label, f"{first['ops']:,}"]
    cells.append("yes" if first["family_trained"] else "no")
    for budget in budgets:
      found = by_budget[budget]
      cells += [f"{median(found, a) / 1e3:.1f}" for a in ("without", "with")]
      cells.append(f"{gain(found):.3f}")
    lines.append(cells)
  for name, least in (("all", 0), ("over 5,000 ops", 5000)):
    cells = [f"*geometric mean, {name}*", "", ""]
    for budget in budgets:
      mean = report.geometric_mean(
        gain(found[budget])
        for found in measured.values()
        if found[budget][0]["ops"] > least
      )
      cells += ["", "", f"{mean:.3f}"]
    lines.append(cells)
  return report.markdown(heads, lines)


def median(found: list[dict], arm: str) -> float:
  """Median step time over the seeds, us."""
  return statistics.median(result[arm]["step_time_us"] for result in found)


def gain(found: list[dict]) -> float:
  """Speedup of the step with the policy."""
  return median(found, "without") / median(found, "with")


if __name__ == "__main__":
  OPTIONS.run(main)
