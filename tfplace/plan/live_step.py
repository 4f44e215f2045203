"""Problems with costs measured on running devices."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfplace import cost, formats
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.plan import clusters, source
from tfplace.plan.stages import Stages
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace.measure.cluster import LiveStep

# Budget of each short search for placements to calibrate with.
_GUESS_S, _GUESS_EVALUATIONS = 5.0, 500
_DEARER = 4.0  # Guessed ratio of link times in a step to isolated ones.


def guesses(problem: Problem) -> np.ndarray:
  """Returns placements for calibration, at most `[3, num_ops]`.

  They resemble results of a search: one of METIS and two of short searches, one
  with link times of isolated measurements, and one with several times longer
  ones, as links in a step are slower.
  """
  from tfplace.measure.calibrate.calibration import Factors

  budget = Budget(_GUESS_S, _GUESS_EVALUATIONS)
  dearer = Factors(_DEARER, _DEARER, _DEARER).scale(problem)
  rows = []
  for strategy, on in (
    ("metis", problem),
    ("annealing", problem),
    ("annealing", dearer),
  ):
    placer = registry.get_placer(strategy)
    with contextlib.suppress(TfplaceError):
      result = placer.place(on, Simulator(on), budget, seed=0)
      rows.append(result.placement.devices)
  return np.array(rows, np.int32).reshape(-1, problem.graph.num_ops)


@contextlib.contextmanager
def measured_problems(
  models: Sequence[str],
  cluster: str,
  folder: str | os.PathLike[str],
  show: Stages,
  **options: Any,
) -> Iterator[tuple[list[Problem], Callable[[Problem], Evaluator]]]:
  """Opens problems with measured costs, and the harness for each problem.

  Each model, of the zoo or a Keras file, is profiled once. Its graph and
  cluster files stay in `folder`, so that a resumed training uses the same
  problem. `options` are those of `MeasurementHarness`.
  """
  with clusters.opened(cluster, show) as (described, devices):
    if devices is None:
      raise MeasurementError(f"cluster {cluster!r} has no real devices")
    problems, evaluators = [], {}
    for model in models:
      with show("profiling", f" {model}") as on_stage:
        traced = source.open_source(model).trace()
        problem = Problem(cost.op_graph(traced, described), described)
        live = devices.step(traced, **options)
        problem = _kept(problem, live, pathlib.Path(folder), on_stage)
      problems.append(problem)
      evaluators[id(problem)] = live.harness(problem, traced_steps=0)
    yield problems, lambda problem: evaluators[id(problem)]


def _kept(
  problem: Problem, live: "LiveStep", folder: pathlib.Path, on_stage: Progress
) -> Problem:
  """Loads the stored problem, or measures its costs."""
  names = f"{problem.graph.name}.{problem.cluster.name}"
  graph_file, cluster_file = (
    folder / f"{names}.{part}".replace("/", "_")
    for part in ("json.gz", "cluster.json")
  )
  if not cluster_file.exists():
    problem = live.profiled(problem, guesses, on_stage)
    os.makedirs(folder, exist_ok=True)
    formats.save_graph(problem.graph, graph_file)
    formats.save_cluster(problem.cluster, cluster_file)
  return Problem(
    formats.load_graph(graph_file), formats.load_cluster(cluster_file)
  )
