"""What a policy imitates: the best placements of classical placers and search.

They are kept in files, so that a run that goes on does not search again. In a
searched placement thousands of small ops are wherever annealing left them,
which is noise to a policy. So clusters of it, from large ones to single groups,
go back to where a simple placement has them, where that costs hardly anything.
"""

import dataclasses
import io
import os
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from tfplace.core import symmetry
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Result
from tfplace.errors import FormatError, InfeasibleError, TrainingError
from tfplace.formats import files
from tfplace.learned.decisions import Decisions
from tfplace.placers.coarsen import coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import get_placer
from tfplace.simulate import Simulator, engine

# One-shot placers: fast, and the same on every machine.
DEMONSTRATORS = (
  *("single", "blocks", "expert", "axes"),
  *("m_topo", "m_etf", "heft"),
)
SEARCH = "annealing"
MAX_LOSS = 0.01  # of the step time, that simplifying may cost in all
MAX_EVALUATIONS = 8000  # of simplifying
_NO_LIMIT_S = 1e9
_BROKEN_FILE = (
  *(OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


@dataclasses.dataclass(frozen=True)
class DemonstrationConfig:
  """Which classical placements a policy may learn from.

  Attributes:
    strategies: one-shot placers, the best of which is the target.
    search_evaluations: placements that annealing may try; 0 leaves it out.
    seed: of the annealing.
    folder: keeps what was found; None keeps nothing.
  """

  strategies: Sequence[str] = DEMONSTRATORS
  search_evaluations: int = 0
  seed: int = 0
  folder: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Demonstration:
  """The best classical placement of a problem.

  Attributes:
    best: [num_ops] devices.
    evaluations: placements that were tried for it.
  """

  best: np.ndarray
  evaluations: int


def find(decisions: Decisions, config: DemonstrationConfig) -> Demonstration:
  """The best placement, or what was the best when it was first asked for.

  A file's name holds a digest of graph, cluster, grouping and config.

  Raises:
    TrainingError: a file that cannot be read or written.
    InfeasibleError: no placement fits in memory.
  """
  path = None
  if config.folder is not None:
    path = os.path.join(config.folder, _file_name(decisions, config))
    if os.path.exists(path):
      try:
        with np.load(path) as found:
          return Demonstration(found["best"], int(found["evaluations"]))
      except _BROKEN_FILE as error:
        raise TrainingError(f"{path!r} cannot be read: {error}") from error
  result = search(decisions, config)
  if path is not None:
    try:
      os.makedirs(os.path.dirname(path), exist_ok=True)
      content = io.BytesIO()
      np.savez(content, **vars(result))
      files.write_bytes(path, content.getvalue())
    except (OSError, FormatError) as error:
      raise TrainingError(f"{path!r} cannot be written: {error}") from error
  return result


def _file_name(decisions: Decisions, config: DemonstrationConfig) -> str:
  problem = decisions.problem
  graph, cluster = problem.graph, problem.cluster
  about = (  # as files of earlier versions have it
    f"Teaching(strategies={config.strategies},"
    f" search_evaluations={config.search_evaluations}, seed={config.seed},"
    " folder=None)"
  )
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
  """The best placement of all strategies, the first of several, as simulated.

  Raises:
    InfeasibleError: none found a placement that fits.
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
  devices, more = simplified(problem, best.placement.devices, quick)
  return Demonstration(devices, spent + more)


def _best(results: Sequence[Result]) -> Result:
  return min(results, key=lambda result: result.evaluation.step_time_us)


def simplified(
  problem: Problem, searched: np.ndarray, simple: np.ndarray
) -> tuple[np.ndarray, int]:
  """A searched placement without what its search did for no reason.

  Args:
    problem: what is placed.
    searched: [num_ops] devices of a feasible placement.
    simple: [num_ops] of the one to go back to; identical devices may have
      other names there.

  Returns:
    [num_ops] devices, in the names of `simple`, of a placement that fits and
    takes at most `MAX_LOSS` longer; and how many placements were simulated.
  """
  groups = GroupGraph(problem)
  classes = symmetry.device_classes(problem.cluster)
  goal = groups.contract(simple)
  now = symmetry.named_like(groups.contract(searched), goal, classes)
  tables = engine.pack(problem)
  work = engine.workspace(tables)
  memory = problem.cluster.memory_bytes
  limit = (1 + MAX_LOSS) * engine.simulate(
    tables, groups.expand(now), work, np.inf
  )
  spent = 1
  for label in _levels(groups):
    for cluster in np.unique(label[now != goal]):
      if spent >= MAX_EVALUATIONS:
        return groups.expand(now), spent
      trial = np.where(label == cluster, goal, now)
      spent += 1
      step_us = engine.simulate(tables, groups.expand(trial), work, limit)
      if step_us <= limit and (work.peak_bytes <= memory).all():
        now = trial
  return groups.expand(now), spent


def _levels(groups: GroupGraph) -> list[np.ndarray]:
  """[num_groups] clusters each, from large ones to single groups; of the
  finest, where hardly any is larger than a group, one is enough."""
  found = (
    list(reversed(coarsen_by_work(groups).labels)) if groups.num_groups else []
  )
  return [*found[1::2], np.arange(groups.num_groups)]
