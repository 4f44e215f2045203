"""The value of the policy `ordered`, alone and in `auto`, on a set of steps.

For each row of a set of `sets.py`, with the same seeds and seconds on one core:
`auto` with the policy and without it; and the best of the policy's samples of
5 s, beside every one-shot placer. A policy that rates all changes alike tells
what samples gain without a network. TensorFlow is loaded and kernels are
compiled before any clock starts.

The holdout is looked at once, when nothing will be chosen any more. `--count`
counts the ops of a set and places nothing.

  python -m benchmarks.run_policy --set=development --out=development.json
  python -m benchmarks.run_policy  # the holdout
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from benchmarks.sets import SETS, SetRow
from tfplace.bin import cli
from tfplace.errors import TfplaceError, TrainingError
from tfplace.graph import Problem
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Result
from tfplace.learned import policies, policy_format
from tfplace.learned.ordered.placer import OrderedPlacer
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.compilation import warm_up
from tfplace.placers.registry import LEARNED_IN_AUTO, classical, get_placer
from tfplace.simulate import Simulator

_STRATEGY = "ordered"
_ONE_SHOT_S = 20.0  # Bound of the seconds of a one-shot placer.
_BEST, _BLIND = "best one-shot placer", "samples without its network"
_OTHERS = (_BEST, "expert", "metis", _BLIND)
_NEVER = 1_000_000_000  # Samples without a better one, after which it ends.

OPTIONS = Options("run_policy", __doc__)
OPTIONS.add("set", "holdout", "Steps.", choices=list(SETS))
OPTIONS.add("rows", "", "Pattern of the rows' labels; all where left out.")
OPTIONS.add("policy", None, "Exported policy; the shipped one where left out.")
OPTIONS.add("budgets_s", ["3", "10", "60"], "Seconds of `auto`.")
OPTIONS.add(
  "alone_s", 5.0, "Seconds of the policy's samples; 0 leaves them out.", least=0
)
OPTIONS.add("count", False, "Extracts and counts ops; places nothing.")
OPTIONS.add_search(0.0, "policy.json")


def main(values: flags.FlagValues) -> None:
  """Measures what is missing; saves after each part of a row."""
  rows = wanted(values)
  budgets = lib.numbers("budgets_s", values.budgets_s)
  seeds = lib.numbers("seeds", values.seeds)
  cli.load_tensorflow()
  if values.count:
    for row in rows:
      graph = row.problem(values.graph_cache_dir).graph
      print(f"{row.label}: {graph.num_ops:,} ops", flush=True)
    return
  lib.pin_to_cores(1)
  saved = lib.Rows(
    values.out,
    {"set": values.set, "alone_s": values.alone_s},
    seeds=seeds,
    policy=values.policy or _STRATEGY,
  )
  for row in rows:
    measure(values, row, saved, budgets, seeds)
  for table in tables(saved.found).values():
    print(f"\n{table}")


def wanted(values: flags.FlagValues) -> list[SetRow]:
  """Returns the rows that the flags name.

  Raises:
    UsageError: there is none.
  """
  rows = SETS[values.set]
  found = [row for row in rows if re.search(values.rows, row.label)]
  if not found:
    raise cli.UsageError(
      f"--rows={values.rows!r} names no row of --set={values.set}: its rows"
      f" are {', '.join(row.label for row in rows)}"
    )
  return found


def measure(
  values: flags.FlagValues,
  row: SetRow,
  saved: lib.Rows,
  budgets: list[int],
  seeds: list[int],
) -> None:
  """Measures the policy alone, and `auto` by seconds and seed."""
  opened: list[Problem] = []

  def problem() -> Problem:
    if not opened:
      opened.append(row.problem(values.graph_cache_dir))
      message_costs = opened[0].cluster.has_message_costs
      for strategy in ("auto", *classical(opened[0])):
        warm_up(strategy, message_costs)
    return opened[0]

  policy = values.policy
  if values.alone_s:
    saved.row(
      f"{row.label}/alone", lambda: alone(problem(), policy, values.alone_s)
    )
  kind = "microbatched" if row.microbatches > 1 else "whole"
  kind += " in units" if row.compiles else ""
  for budget in budgets:
    for seed in seeds:
      saved.row(
        f"{row.label}/{budget}/{seed}",
        lambda b=budget, s=seed: {
          "kind": kind,
          **autos(problem(), policy, b, s),
        },
      )


class Blind(policies.Policy):
  """An exported policy that rates all changes alike."""

  def run(self, function: str, arrays: Iterable[np.ndarray]) -> Any:
    *others, last = super().run(function, arrays)
    return (*others, np.zeros_like(last))  # The slope, or the last layer.


@contextmanager
def loaded(policy: str | None, kind: type[policies.Policy]) -> Iterator[None]:
  """Has `ordered` use a policy of that kind, which is loaded already."""
  folder = pathlib.Path(policy or policies.SHIPPED / _STRATEGY)
  found = kind(folder, policy_format.read_info(folder, _STRATEGY))

  def load(strategy: str, unused_directory: str | None) -> policies.Policy:
    if strategy != _STRATEGY:
      raise TrainingError(f"the policy is of {_STRATEGY}, not {strategy}")
    return found

  with mock.patch.object(policies, "load_placers_policy", load):
    yield


def autos(
  problem: Problem, policy: str | None, budget_s: float, seed: int
) -> dict[str, Any]:
  """`auto` with the policy, without it, and with a blind one."""
  found: dict[str, Any] = {}
  arms = {"with": policies.Policy, "without": None, "blind": Blind}
  for arm, kind in arms.items():
    # A new one: what an arm has computed of it is not the next one's to use.
    fresh = Problem(dataclasses.replace(problem.graph), problem.cluster)
    if kind is None:
      placer, given = AutoPlacer(learned=()), nullcontext()
    else:
      # Whole steps ask only a policy that is given.
      folder = policy or str(policies.SHIPPED / _STRATEGY)
      placer = AutoPlacer(learned=LEARNED_IN_AUTO, policy=folder)
      given = loaded(policy, kind)
    with given:
      result = placer.place(fresh, Simulator(fresh), Budget(budget_s), seed)
    found[arm] = _kept(result)
  return found


def alone(
  problem: Problem, policy: str | None, seconds: float
) -> dict[str, Any]:
  """The policy's samples, a blind one's, and every one-shot placer."""
  simulator = Simulator(problem)
  found: dict[str, Any] = {"ops": problem.graph.num_ops, "one_shot": {}}
  for strategy in classical(problem):
    try:
      placer = get_placer(strategy)
      result = placer.place(problem, simulator, Budget(_ONE_SHOT_S), 0)
    except TfplaceError as error:
      found["one_shot"][strategy] = {"error": str(error)}
    else:
      found["one_shot"][strategy] = _kept(result)
  placer = OrderedPlacer(policy, samples=_NEVER, patience=_NEVER)
  for name, kind in (("policy", policies.Policy), ("blind", Blind)):
    with loaded(policy, kind):
      result = placer.place(problem, simulator, Budget(seconds), 0)
    found[name] = _kept(result)
  return found


def _kept(result: Result) -> dict[str, Any]:
  return {
    "step_time_us": result.evaluation.step_time_us,
    "seconds": result.seconds,
    "evaluations": result.evaluations,
  }


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns the gains in `auto`, and the policy alone beside one-shot placers.

  Gains are the median step of the seeds without the policy over that with it.
  Tables of another set than the holdout have its name.
  """
  rows = found["rows"]
  end = found["stamp"].get("set", "holdout")
  end = "" if end == "holdout" else f"_{end}"
  steps: dict[tuple[str, str], list[dict]] = {}
  for key, row in rows.items():
    if not key.endswith("/alone"):
      label, budget, _ = key.rsplit("/", 2)
      steps.setdefault((label, budget), []).append(row)
  gains: dict[tuple[str, str], list[tuple[float, float]]] = {}
  for (_, budget), each in steps.items():
    took_us = {
      arm: statistics.median(row[arm]["step_time_us"] for row in each)
      for arm in ("without", "with", "blind")
    }
    both = took_us["with"], took_us["blind"]
    kind = each[0]["kind"], budget
    gains.setdefault(kind, []).append(
      tuple(took_us["without"] / time_us for time_us in both)
    )
  lines = []
  for (kind, budget), pairs in sorted(gains.items()):
    own, blind = zip(*pairs, strict=True)
    mean, other = lib.geometric_mean(own), lib.geometric_mean(blind)
    shown = (f"{g:.3f}" for g in (mean, min(own), max(own), other))
    lines.append([f"{len(own)} {kind}, {budget} s", *shown])
  heads = ("steps", "gain", "least", "most", "without its network")
  made = {}
  if lines:
    made["policy"] = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  if any(key.endswith("/alone") for key in rows):
    made["policy_alone"] = _alone(rows)
  return {f"{name}{end}": text for name, text in made.items()}


def _alone(rows: Mapping[str, dict]) -> str:
  """Step times of others over the policy's: geometric mean and least."""
  ratios: dict[str, list[float]] = {}
  for key, row in rows.items():
    if not key.endswith("/alone"):
      continue
    times = {
      name: shot["step_time_us"]
      for name, shot in row["one_shot"].items()
      if "step_time_us" in shot
    }
    times[_BEST] = min(times.values())
    times[_BLIND] = row["blind"]["step_time_us"]
    for name in _OTHERS:
      if name in times:
        own = row["policy"]["step_time_us"]
        ratios.setdefault(name, []).append(times[name] / own)
  said = [f"{name} {lib.mean_and_least(each)}" for name, each in ratios.items()]
  return f"Over the policy alone: {', '.join(said)}."


if __name__ == "__main__":
  OPTIONS.run(main)
