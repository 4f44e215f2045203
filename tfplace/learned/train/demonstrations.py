"""Imitation targets: the best placements of classical placers and search.

Cached in files for resumed runs. Annealing's arbitrary choices are noise to a
policy, so they are simplified.
"""

import dataclasses
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.core import symmetry
from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.errors import FormatError, InfeasibleError, TrainingError
from tfplace.formats import files
from tfplace.learned.decisions import Decisions
from tfplace.placers.coarsen import coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import get_placer
from tfplace.simulate import Simulator, engine

SEARCH = "annealing"
_NO_LIMIT_S = 1e9
_BROKEN_FILE = (
  *(OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


@dataclasses.dataclass(frozen=True)
class DemonstrationConfig:
  """Classical placers that provide imitation targets.

  Attributes:
    strategies: One-shot placers, fast and deterministic; the best placement is
      the target.
    search_evaluations: Evaluations of annealing; 0 disables it.
    seed: Seed of the annealing.
    max_loss: Maximum relative increase of the step time by simplification.
    max_evaluations: Limit on the evaluations of the simplification.
    folder: Cache directory; None disables the cache.
  """

  strategies: Sequence[str] = (
    *("single", "blocks", "expert", "axes"),
    *("m_topo", "m_etf", "heft"),
  )
  search_evaluations: int = 0
  seed: int = 0
  max_loss: float = 0.01
  max_evaluations: int = 8000
  folder: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstration:
  """Best classical placement of a problem.

  Attributes:
    best: [num_ops] devices.
    evaluations: Number of placements evaluated to find it.
  """

  best: np.ndarray
  evaluations: int


def find(decisions: Decisions, config: DemonstrationConfig) -> Demonstration:
  """Returns the best placement, from the cache if it is there.

  Raises:
    TrainingError: A file cannot be read or written.
    InfeasibleError: No placement fits in memory.
  """
  found = kept(decisions, config, lambda: vars(search(decisions, config)))
  return Demonstration(found["best"], int(found["evaluations"]))


def kept(
  decisions: Decisions,
  config: Any,
  search: Callable[[], Mapping[str, Any]],
) -> Mapping[str, Any]:
  """Returns arrays that a search finds, from the folder if they are there.

  File names contain a digest of graph, cluster, decisions and config.

  Args:
    config: Dataclass of settings with a `folder`, which may be None.

  Raises:
    TrainingError: A file cannot be read or written.
  """
  if config.folder is None:
    return search()
  path = os.path.join(config.folder, _file_name(decisions, config))
  if os.path.exists(path):
    try:
      with np.load(path) as found:
        return dict(found)
    except _BROKEN_FILE as error:
      raise TrainingError(f"{path!r} cannot be read: {error}") from error
  result = search()
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **result)
    files.write_bytes(path, content.getvalue())
  except (OSError, FormatError) as error:
    raise TrainingError(f"{path!r} cannot be written: {error}") from error
  return result


def _file_name(decisions: Decisions, config: Any) -> str:
  problem = decisions.problem
  graph, cluster = problem.graph, problem.cluster
  about = dataclasses.replace(config, folder=None)
  digest = zlib.crc32(f"{about}{cluster}{graph.names}".encode())
  for array in (
    decisions.decision_of,
    problem.time_us,
    graph.output_bytes,
    graph.persistent_bytes,
    graph.edge_src,
    graph.edge_dst,
    cluster.memory_bytes,
    cluster.op_overhead_us,
  ):
    digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
  name = f"{graph.name}.{cluster.name}.{decisions.num_decisions}"
  return f"{name.replace('/', '_')}.{digest:08x}.npz"


def search(decisions: Decisions, config: DemonstrationConfig) -> Demonstration:
  """Returns the best simulated placement of all strategies.

  Ties go to the first strategy.

  Raises:
    InfeasibleError: No strategy found a placement that fits.
  """
  problem = decisions.as_groups
  simulator = Simulator(problem)
  strategies = [(name, 1000) for name in config.strategies]
  if config.search_evaluations:
    strategies.append((SEARCH, config.search_evaluations))
  found: list[Result] = []
  failure: InfeasibleError | None = None
  for name, evaluations in strategies:
    budget = Budget(_NO_LIMIT_S, evaluations)
    try:
      placer = get_placer(name)
      found.append(placer.place(problem, simulator, budget, config.seed))
    except InfeasibleError as error:
      failure = error
  if not found:
    raise failure or InfeasibleError(
      "there is no classical placer to learn from"
    )
  spent = sum(result.evaluations for result in found)
  best = _best(found)
  if best.strategy != SEARCH:
    return Demonstration(best.placement.devices, spent)
  others = [result for result in found if result.strategy != SEARCH]
  quick = _best(others or found).placement.devices
  devices, more = simplified(problem, best.placement.devices, quick, config)
  return Demonstration(devices, spent + more)


def _best(results: Sequence[Result]) -> Result:
  return min(results, key=lambda result: result.evaluation.step_time_us)


def simplified(
  problem: Problem,
  searched: np.ndarray,
  simple: np.ndarray,
  config: DemonstrationConfig = DemonstrationConfig(),
) -> tuple[np.ndarray, int]:
  """Simplifies a searched placement where its choices gain nothing.

  Args:
    searched: [num_ops] devices of a feasible placement.
    simple: [num_ops] devices of the placement to return to. Identical devices
      may be permuted.

  Returns:
    [num_ops] devices, named as in `simple`, of a feasible placement that takes
    at most `max_loss` longer; and the number of simulated placements.
  """
  groups = GroupGraph(problem)
  classes = symmetry.device_classes(problem.cluster)
  goal = groups.contract(simple)
  now = symmetry.named_like(groups.contract(searched), goal, classes)
  tables = engine.pack(problem)
  work = engine.workspace(tables)
  memory = problem.cluster.memory_bytes
  limit = (1 + config.max_loss) * engine.simulate(
    tables, groups.expand(now), work, np.inf
  )
  spent = 1
  for label in _levels(groups):
    for coarse_group in np.unique(label[now != goal]):
      if spent >= config.max_evaluations:
        return groups.expand(now), spent
      trial = np.where(label == coarse_group, goal, now)
      spent += 1
      step_us = engine.simulate(tables, groups.expand(trial), work, limit)
      if step_us <= limit and (work.peak_bytes <= memory).all():
        now = trial
  return groups.expand(now), spent


def _levels(groups: GroupGraph) -> list[np.ndarray]:
  """Returns [num_groups] labels: every second level, then single groups."""
  found = (
    list(reversed(coarsen_by_work(groups).labels)) if groups.num_groups else []
  )
  return [*found[1::2], np.arange(groups.num_groups)]
