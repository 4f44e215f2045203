"""A searched placement without what the search did for no reason.

Annealing leaves wherever it happened to be whatever does not lengthen the
step: thousands of small ops, whose devices are noise to a policy that is to
imitate them. Here clusters, from large ones to single groups, go back to where
a simple placement has them as long as the step stays nearly as short; what
remains is what the search has found.

What a policy imitates: the best placements of classical placers and search.

Kept in files, so that a run that goes on does not search again."""

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

LOSS = 0.01  # of the step time, that tidying may cost in all
MAX_EVALUATIONS = 8000


def tidied(
  problem: Problem, searched: np.ndarray, simple: np.ndarray
) -> tuple[np.ndarray, int]:
  """Puts back what matters little.

  Args:
    problem: what is placed.
    searched: [num_ops] devices of a feasible placement.
    simple: [num_ops] of the one to go back to; devices that are alike may
      have other names there.

  Returns:
    [num_ops] devices, in the names of `simple`, of a placement that fits and
    takes at most `LOSS` longer; and how many placements were simulated.
  """
  groups = GroupGraph(problem)
  classes = symmetry.device_classes(problem.cluster)
  goal = groups.contract(simple)
  now = symmetry.named(groups.contract(searched), classes, goal)
  tables = engine.pack(problem)
  work = engine.workspace(tables)
  memory = problem.cluster.memory_bytes
  limit = (1 + LOSS) * engine.simulate(tables, groups.expand(now), work, np.inf)
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


# One-shot placers: fast, and the same on every machine.
TEACHERS = ("single", "blocks", "expert", "axes", "m_topo", "m_etf", "heft")
SEARCH = "annealing"
_NO_LIMIT_S = 1e9
_BROKEN_FILE = (
  *(OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


@dataclasses.dataclass(frozen=True)
class Teaching:
  """Which classical placements a policy may learn from.

  Attributes:
    strategies: one-shot placers, the best of which is the target.
    search_evaluations: placements that annealing may try; 0 leaves it out.
    seed: of the annealing.
    folder: keeps what was found, so that a run that goes on does not search
      again; None keeps nothing.
  """

  strategies: Sequence[str] = TEACHERS
  search_evaluations: int = 0
  seed: int = 0
  folder: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Taught:
  """What teachers have found.

  Attributes:
    best: [num_ops] devices of the best placement of all.
    quick: [num_ops] of the best that took no search: what whoever asks the
      policy has, too.
    evaluations: placements that they have tried.
  """

  best: np.ndarray
  quick: np.ndarray
  evaluations: int


def ask(decisions: Decisions, teaching: Teaching) -> Taught:
  """What the teachers find, or what they found when they were first asked.

  A file is of one graph, cluster, grouping and teaching: its name holds a
  digest of all of them. It is written whole or not at all.
  """
  path = None
  if teaching.folder is not None:
    path = os.path.join(teaching.folder, _file_name(decisions, teaching))
    if os.path.exists(path):
      try:
        with np.load(path) as found:
          return Taught(
            found["best"], found["quick"], int(found["evaluations"])
          )
      except _BROKEN_FILE as error:
        raise TrainingError(f"{path!r} cannot be read: {error}") from error
  taught = ask_teachers(decisions, teaching)
  if path is not None:
    try:
      os.makedirs(os.path.dirname(path), exist_ok=True)
      content = io.BytesIO()
      np.savez(content, **vars(taught))
      files.write_bytes(path, content.getvalue())
    except (OSError, FormatError) as error:
      raise TrainingError(f"{path!r} cannot be written: {error}") from error
  return taught


def _file_name(decisions: Decisions, teaching: Teaching) -> str:
  problem = decisions.problem
  graph, cluster = problem.graph, problem.cluster
  about = dataclasses.replace(teaching, folder=None)
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


def ask_teachers(decisions: Decisions, teaching: Teaching) -> Taught:
  """The best placements of all teachers, the first of several, by simulation.

  Raises:
    InfeasibleError: none found a placement that fits.
  """
  problem = decisions.as_groups
  simulator = Simulator(problem)
  strategies = [(name, 1000) for name in teaching.strategies]
  if teaching.search_evaluations:
    strategies.append((SEARCH, teaching.search_evaluations))
  found: list[Result] = []
  failure: InfeasibleError | None = None
  for name, evaluations in strategies:
    budget = Budget(_NO_LIMIT_S, evaluations)
    try:
      placer = get_placer(name)
      found.append(placer.place(problem, simulator, budget, teaching.seed))
    except InfeasibleError as error:
      failure = error
  if not found:
    raise failure or InfeasibleError("there is no teacher to learn from")
  spent = sum(result.evaluations for result in found)
  best = _best(found)
  if best.strategy != SEARCH:
    return Taught(best.placement.devices, best.placement.devices, spent)
  others = [result for result in found if result.strategy != SEARCH]
  quick = _best(others or found).placement.devices
  clean, looked = tidied(problem, best.placement.devices, quick)
  return Taught(clean, quick, spent + looked)


def _best(results: Sequence[Result]) -> Result:
  return min(results, key=lambda result: result.evaluation.step_time_us)
