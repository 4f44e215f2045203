"""Compares `auto` with and without the policy `ordered` on a set of graphs.

For each row of a set of `models/graph_sets.py`, with the same seeds and seconds
on one core: `auto` with the policy and without it; and the best of the policy's
samples of 3 s, beside the best one-shot placer, as many random changes of the
same placement, and as many random placements of coarse groups on accelerators.
TensorFlow is loaded and kernels are compiled before any clock starts. Each
result is saved as soon as it is there.

The test set is looked at once, when nothing will be chosen any more. `--count`
counts its ops and places nothing.

  python -m benchmarks.learned.run_holdout  # the development set
  python -m benchmarks.learned.run_holdout --set=test --count
  python -m benchmarks.learned.run_holdout --set=test  # once, at the end
"""

import dataclasses
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.learned import samples
from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import graph_sets
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.errors import TfplaceError
from tfplace.learned.decisions import group_decisions, sample
from tfplace.learned.ordered.placer import OrderedPlacer, OrderedProposer
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.place import warm_up
from tfplace.placers.registry import LEARNED_IN_AUTO, classical, get_placer
from tfplace.placers.tracker import Tracker
from tfplace.plan import graph_cache
from tfplace.simulate import Simulator

ARMS: Mapping[str, Sequence[str]] = {"with": LEARNED_IN_AUTO, "without": ()}
ALONE_S = 3.0  # of the policy's samples
ONE_SHOT_S = 60.0  # that a one-shot placer may take
# Coarse groups that random placements take in turn, as the policy does.
RANDOM_SIZES = (12, 16, 24, 32, 48, 64)
_AT_ONCE = 16  # random placements of one size
_SPLIT, _WHOLE = "Microbatched steps", "Whole steps"
_NEVER = 1_000_000_000  # samples without a better one, after which it ends


OPTIONS = Options("run_holdout", __doc__)
OPTIONS.add("set", "development", "Graphs.", choices=list(graph_sets.SETS))
OPTIONS.add("rows", "", "Pattern of the rows' labels; all where left out.")
OPTIONS.add(
  "graph_cache_dir", graph_cache.default_directory(), "Extracted graphs."
)
OPTIONS.add("out", None, "JSON file; by default results/holdout_SET.json.")
OPTIONS.add("policy", None, "Exported policy; the shipped one where left out.")
OPTIONS.add("budgets_s", ["3", "10", "60"], "Seconds of auto.")
OPTIONS.add("seeds", ["0", "1"], "Seeds of the searches.")
OPTIONS.add("count", False, "Extracts and counts ops only: places nothing.")


def main(values: flags.FlagValues) -> None:
  """Measures what is missing; saves after each part of a row."""
  rows = wanted(values)
  _check_numbers(values)
  cli.load_tensorflow()
  if values.count:
    for row in rows:
      graph = row.problem(values.graph_cache_dir).graph
      print(f"{row.label}: {graph.num_ops:,} ops", flush=True)
    return
  saved_rows.pin_to_cores(1)
  out = values.out or str(command.RESULTS / f"holdout_{values.set}.json")
  cli.check_writable(out)
  settings = {"set": values.set, "policy": values.policy or "shipped"}
  saved = saved_rows.SavedRows(out, settings)
  found = {row.label: measured(values, row, saved) for row in rows}
  report.write(out, tables(rows, found))


def wanted(values: flags.FlagValues) -> list[graph_sets.SetRow]:
  """The rows that the flags name.

  Raises:
    UsageError: there is none.
  """
  rows = graph_sets.SETS[values.set]
  found = [row for row in rows if re.search(values.rows, row.label)]
  if not found:
    raise cli.UsageError(
      f"--rows={values.rows!r} names no row of --set={values.set}: its rows"
      f" are {', '.join(row.label for row in rows)}"
    )
  return found


def _check_numbers(values: flags.FlagValues) -> None:
  for flag, texts in (
    ("budgets_s", values.budgets_s),
    ("seeds", values.seeds),
  ):
    for text in texts:
      if not cli.is_count(text):
        raise cli.UsageError(f"--{flag}: {text!r} is no whole number")


class _Opened:
  """A row's problem, extracted when a part of the row is missing."""

  def __init__(self, row: graph_sets.SetRow, cache_dir: str) -> None:
    self._row, self._cache_dir = row, cache_dir
    self._problem: Problem | None = None

  @property
  def problem(self) -> Problem:
    if self._problem is None:
      self._problem = self._row.problem(self._cache_dir)
      message_costs = self._problem.cluster.has_message_costs
      for strategy in ("auto", *classical(self._problem)):
        warm_up(strategy, message_costs)
    return self._problem


def measured(
  values: flags.FlagValues,
  row: graph_sets.SetRow,
  saved: saved_rows.SavedRows,
) -> dict[str, Any]:
  """`alone`, and by budget the results of `auto`, one for each seed."""
  opened = _Opened(row, values.graph_cache_dir)
  policy = values.policy
  found: dict[str, Any] = {
    "alone": saved.row(
      f"{row.label}/alone", lambda: alone(opened.problem, policy)
    )
  }
  for budget in values.budgets_s:
    found[budget] = [
      saved.row(
        f"{row.label}/{budget}/{seed}",
        lambda b=budget, s=seed: autos(
          opened.problem, policy, float(b), int(s)
        ),
      )
      for seed in values.seeds
    ]
  return found


def autos(
  problem: Problem, policy: str | None, budget_s: float, seed: int
) -> dict[str, Any]:
  """`auto` with the policy, and without it."""
  found: dict[str, Any] = {}
  for arm, learned in ARMS.items():
    placer = AutoPlacer(learned, policy if learned else None)
    # A new one: what an arm has computed of it is not the next one's to use.
    fresh = Problem(dataclasses.replace(problem.graph), problem.cluster)
    result = placer.place(fresh, Simulator(fresh), Budget(budget_s), seed)
    by = {tried.strategy: tried for tried in result.tried}
    found[arm] = {
      **_kept(result),
      "policy_s": sum(by[name].seconds for name in learned if name in by),
      "search_s": by["annealing"].seconds if "annealing" in by else 0.0,
      "skipped": dict(result.skipped),
    }
  return found


def alone(
  problem: Problem, policy: str | None, seconds: float = ALONE_S
) -> dict[str, Any]:
  """The policy's samples, random ones and every one-shot placer."""
  simulator = Simulator(problem)
  found: dict[str, Any] = {"ops": problem.graph.num_ops, "one_shot": {}}
  for strategy in classical(problem):
    try:
      placer = get_placer(strategy)
      result = placer.place(problem, simulator, Budget(ONE_SHOT_S), 0)
    except TfplaceError as error:
      found["one_shot"][strategy] = {"error": str(error)}
    else:
      found["one_shot"][strategy] = _kept(result)
  placer = OrderedPlacer(policy, samples=_NEVER, patience=_NEVER)
  sampled = placer.place(problem, simulator, Budget(seconds), 0)
  found["policy"] = _kept(sampled)
  budget = Budget(ONE_SHOT_S, sampled.evaluations)
  tracker = Tracker(placer.name, problem, simulator, budget)
  changes = OrderedProposer(problem, None, placer.sizes)
  placer.search(tracker, np.random.default_rng(0), changes)
  found["changes"] = _kept(tracker.result())
  found["random"] = random_samples(problem, simulator, sampled.evaluations)
  return found


def _kept(result: Result) -> dict[str, Any]:
  return {
    "step_time_us": result.evaluation.step_time_us,
    "seconds": result.seconds,
    "evaluations": result.evaluations,
  }


def random_samples(
  problem: Problem, simulator: Simulator, count: int
) -> dict[str, Any]:
  """The best of `count` random placements that fit; None where none does."""
  began, rng, best = time.perf_counter(), np.random.default_rng(0), math.inf
  by_size = [group_decisions(problem, size) for size in RANDOM_SIZES]
  left, turn = count, 0
  while left > 0:
    decisions = by_size[turn % len(by_size)]
    logits = samples.uniform(problem, decisions)
    some = sample(logits, min(left, _AT_ONCE), rng, decisions.groupings)
    batch = simulator.run(decisions.to_devices(some))
    times = np.where(batch.feasible, batch.step_time_us, math.inf)
    best = min(best, float(times.min()))
    left, turn = left - len(some), turn + 1
  return {
    "step_time_us": report.known(best),
    "seconds": time.perf_counter() - began,
    "evaluations": count,
  }


def tables(rows: Sequence[graph_sets.SetRow], found: Mapping[str, dict]) -> str:
  """Markdown: `auto` on microbatched and on whole steps, and samples alone."""
  parts: dict[str, dict[str, dict]] = {_SPLIT: {}, _WHOLE: {}}
  for row in rows:
    is_whole = getattr(row, "microbatches", 1) == 1
    part = parts[_WHOLE if is_whole else _SPLIT]
    part[row.label] = found[row.label]
  texts = [
    f"{name}:\n\n{auto_table(part)}" for name, part in parts.items() if part
  ]
  return "\n\n".join([*texts, f"Samples alone:\n\n{alone_table(found)}"])


def auto_table(found: Mapping[str, dict]) -> str:
  """Markdown: by row and budget, medians of the seeds."""
  heads = ["graph", "ops", "s", "without, ms", "with", "without / with"]
  heads += ["evaluations without", "with", "policy, s", "search, s"]
  lines = []
  gains: dict[str, list[float]] = {}
  for label, row in found.items():
    for budget, results in row.items():
      if budget == "alone":
        continue
      ms = {a: _median(results, a, "step_time_us") / 1e3 for a in ARMS}
      gain = ms["without"] / ms["with"]
      gains.setdefault(budget, []).append(gain)
      count = {a: _median(results, a, "evaluations") for a in ARMS}
      cells = [label, f"{row['alone']['ops']:,}", budget]
      cells += [f"{ms['without']:.1f}", f"{ms['with']:.1f}", f"{gain:.3f}"]
      cells += [f"{count['without']:,.0f}", f"{count['with']:,.0f}"]
      for key in ("policy_s", "search_s"):
        cells.append(f"{_median(results, 'with', key):.2f}")
      lines.append(cells)
  for budget, all_gains in gains.items():
    mean = f"{report.geometric_mean(all_gains):.3f}, {min(all_gains):.3f}"
    name = "*geometric mean, and least*"
    lines.append([name, "", budget, "", "", mean, *[""] * 4])
  return report.markdown(heads, lines)


def _median(results: list[dict], arm: str, key: str) -> float:
  return statistics.median(result[arm][key] for result in results)


def alone_table(found: Mapping[str, dict]) -> str:
  """Markdown: the policy's samples over one-shot placers and random ones."""
  heads = ["graph", "best one-shot, ms", "policy, ms", "policy / one-shot"]
  heads += ["random changes, ms", "policy / changes", "random, ms"]
  heads += ["policy / random", "samples", "policy, s", "random, s"]
  lines = []
  over: dict[str, list[float]] = {"shot": [], "changes": [], "random": []}
  for label, row in found.items():
    each = row["alone"]
    times_ms = {
      name: shot["step_time_us"] / 1e3
      for name, shot in each["one_shot"].items()
      if "step_time_us" in shot
    }
    name = min(times_ms, key=lambda n: times_ms[n])
    mine, random = each["policy"], each["random"]
    mine_ms, random_us = mine["step_time_us"] / 1e3, random["step_time_us"]
    changes_ms = each["changes"]["step_time_us"] / 1e3
    over["shot"].append(mine_ms / times_ms[name])
    over["changes"].append(mine_ms / changes_ms)
    cells = [label, f"{times_ms[name]:.1f} {name}", f"{mine_ms:.1f}"]
    cells += [f"{over['shot'][-1]:.3f}", f"{changes_ms:.1f}"]
    cells.append(f"{over['changes'][-1]:.3f}")
    if random_us is None:
      cells += ["OOM", "-"]
    else:
      over["random"].append(1e3 * mine_ms / random_us)
      cells += [f"{random_us / 1e3:.1f}", f"{over['random'][-1]:.3f}"]
    cells += [f"{mine['evaluations']:,}", f"{mine['seconds']:.2f}"]
    lines.append([*cells, f"{random['seconds']:.2f}"])
  shot, changes, random_mean = (
    f"{report.geometric_mean(ratios):.3f}" for ratios in over.values()
  )
  means = ["*geometric mean*", "", "", shot, "", changes, "", random_mean]
  return report.markdown(heads, [*lines, [*means, "", "", ""]])


if __name__ == "__main__":
  OPTIONS.run(main)
