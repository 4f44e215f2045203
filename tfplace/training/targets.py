"""Placements that training starts from: targets to imitate, bases to change.

They are kept in files for resumed runs.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import (
  FormatError,
  InfeasibleError,
  TfplaceError,
  TrainingError,
)
from tfplace.formats import files
from tfplace.graph import symmetry
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Result
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.placers.registry import MICROBATCHED, get_placer
from tfplace.placers.tracker import best_first
from tfplace.simulate import Simulator
from tfplace.training.config import TrainConfig
from tfplace.training.tasks import Task, checksum

FOLDER = "teachers"  # In the checkpoint directory.
_SEARCH = "annealing"
# One-shot placers, fast and deterministic, whose best placement is the target.
_TEACHERS = ("single", "blocks", "expert", "axes", "m_topo", "m_etf", "heft")
_TEACHER_EVALUATIONS = 1000
_NO_LIMIT_S = 1e9
# Rules whose best placement is a base; microbatched steps have `MICROBATCHED`.
_RULES = ("single", "expert", "axes", "metis", "heft")
_RULE_S = 5.0
# Evaluations of searches, each from what the one before found. Their results
# are bases, too: the placer changes such placements from its first second on.
_SEARCHES = (150, 2000)
_SEARCH_S = 6.0
_BROKEN_FILE = (
  *(OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


def imitation_task(
  decisions: Decisions, evaluator: Evaluator, config: TrainConfig
) -> Task:
  """Creates a task with the best placement of classical placers as target.

  They are always compared in the simulator, so that a resumed run has the same
  target.

  Raises:
    TrainingError: A file cannot be read or written.
    InfeasibleError: No placement fits in memory.
  """
  known = _kept(
    decisions,
    config,
    config.seed,
    lambda: demonstrate(decisions, config),
  )
  classes = symmetry.device_classes(decisions.problem.cluster)
  choices = decisions.to_choices(known["best"])
  choices = symmetry.by_first_use(choices, classes)
  (step_us,) = evaluator.step_times(decisions.to_devices(choices[None]))
  fits = bool(np.isfinite(step_us))
  baseline_us = step_us
  if not fits:
    (baseline_us,) = evaluator.step_times(known["best"][None])
  return Task(
    decisions,
    evaluator,
    float(baseline_us),
    choices,
    best_us=float(step_us),  # Infinite where it does not fit.
    best=choices if fits else None,
    evaluations=int(known["evaluations"]),
  )


def change_tasks(
  decisions: Decisions, evaluator: Evaluator, config: TrainConfig
) -> list[Task]:
  """Creates a task for each placement to change.

  Raises:
    InfeasibleError: No placement fits in memory.
    TrainingError: A file cannot be read or written.
  """
  problem = decisions.problem
  known = _kept(
    group_decisions(problem),  # The bases are the same at any size.
    config,
    (config.seed, config.init_from),
    lambda: {"bases": find_bases(problem, config)},
  )
  tasks = []
  for base in known["bases"]:
    based = decisions.based_on(base)
    (base_us,) = evaluator.step_times(base[None])
    task = Task(based, evaluator, float(base_us), based.base_choices)
    task.evaluate(based.base_choices[None])
    tasks.append(task)
  return tasks


def demonstrate(
  decisions: Decisions, config: TrainConfig
) -> dict[str, np.ndarray | int]:
  """Returns the [num_ops] `best` placement of rules and `evaluations`.

  Raises:
    InfeasibleError: No strategy found a placement that fits.
  """
  simulator = Simulator(decisions.as_groups)
  limits = _NO_LIMIT_S, _TEACHER_EVALUATIONS
  results = _results(simulator, _TEACHERS, config.seed, limits)
  return {
    "best": best_first(results)[0].placement.devices,
    "evaluations": sum(result.evaluations for result in results),
  }


def find_bases(problem: Problem, config: TrainConfig) -> np.ndarray:
  """Finds [?, num_ops] distinct placements by rules and searches.

  Raises:
    InfeasibleError: No placement fits in memory.
  """
  simulator = Simulator(problem)
  rules = MICROBATCHED if problem.graph.num_microbatches > 1 else _RULES
  ruled = _results(simulator, rules, config.seed, (_RULE_S, None))
  results = [best_first(ruled)[0]]
  searches: list[tuple[float, int | None]] = [
    (_SEARCH_S, evaluations) for evaluations in _SEARCHES
  ]
  if config.search_s > 0.0:
    searches.append((config.search_s, None))
  for seconds, evaluations in searches:
    if evaluations is None and config.init_from is not None:
      # A policy gains less on what annealing has changed than on rules.
      is_shipped = config.init_from == policies.SHIPPED_NAME
      placer = get_placer("auto", None if is_shipped else config.init_from)
    else:
      placer = get_placer(_SEARCH, start=results[-1].placement.devices[None])
    budget = Budget(seconds, evaluations)
    results.append(placer.place(problem, simulator, budget, config.seed))
  return np.stack([result.placement.devices for result in best_first(results)])


def _results(
  simulator: Simulator,
  strategies: Sequence[str],
  seed: int,
  limits: tuple[float, int | None],
) -> list[Result]:
  """Returns the results of strategies; raises an error if all fail."""
  results: list[Result] = []
  failure: TfplaceError | None = None
  for name in strategies:
    placer, budget = get_placer(name), Budget(*limits)
    try:
      results.append(placer.place(simulator.problem, simulator, budget, seed))
    except TfplaceError as error:  # It may need more devices or memory.
      failure = error
  if not results:
    raise failure or InfeasibleError("there is no placement to start from")
  return results


def _kept(
  decisions: Decisions,
  config: TrainConfig,
  about: object,
  search: Callable[[], Mapping[str, Any]],
) -> Mapping[str, Any]:
  """Returns arrays that a search finds, from a file if they are there.

  File names contain a digest of graph, cluster, decisions and `about`.

  Raises:
    TrainingError: A file cannot be read or written.
  """
  if config.checkpoint_dir is None:
    return search()
  folder = os.path.join(config.checkpoint_dir, FOLDER)
  path = os.path.join(folder, _file_name(decisions, about))
  if os.path.exists(path):
    try:
      with np.load(path) as arrays:
        return dict(arrays)
    except _BROKEN_FILE as error:
      raise TrainingError(f"{path!r} cannot be read: {error}") from error
  result = search()
  try:
    os.makedirs(folder, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **result)
    files.write_bytes(path, content.getvalue())
  except (OSError, FormatError) as error:
    raise TrainingError(f"{path!r} cannot be written: {error}") from error
  return result


def _file_name(decisions: Decisions, about: object) -> str:
  problem = decisions.problem
  graph, cluster = problem.graph, problem.cluster
  digest = checksum(
    (
      decisions.decision_of,
      problem.time_us,
      graph.output_bytes,
      graph.persistent_bytes,
      graph.edge_src,
      graph.edge_dst,
      cluster.memory_bytes,
      cluster.op_overhead_us,
    ),
    zlib.crc32(f"{about}{cluster}{graph.names}".encode()),
  )
  name = f"{graph.name}.{cluster.name}.{decisions.num_decisions}"
  return f"{name.replace('/', '_')}.{digest:08x}.npz"
