"""Clusters by every name that users give them, and steps on those that run.

Presets and files need no device. This process's logical devices are described
by `local_devices`. "workers:N", "gpus" and files of hosts are devices that
`tfplace.measure` starts: a `LiveStep` is one model's step on them.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfplace import formats
from tfplace.core.cluster import Cluster
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluation, Evaluator
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.extraction import stages
from tfplace.formats import cluster as cluster_format
from tfplace.placers import registry
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure import MeasurementHarness, OpenCluster
  from tfplace.plan.planner import Stages

# Of each short search for placements to calibrate with.
_GUESS_S, _GUESS_EVALUATIONS = 5.0, 500
_DEARER = 4.0  # links in a step than on their own, at a guess
ClusterLike: TypeAlias = Cluster | str | os.PathLike[str]
# Problems, and what measures placements of each.
MeasuredProblems: TypeAlias = tuple[
  list[Problem], Callable[[Problem], Evaluator]
]


def find_cluster(cluster: ClusterLike | None) -> Cluster:
  """The description of a cluster; starts no devices.

  Args:
    cluster: a `Cluster`, the name of a preset, the path of a file, or None for
      the logical devices of this process.

  Raises:
    FormatError: no such preset, a broken file, or something else.
  """
  if cluster is not None:
    return cluster_format.find_cluster(cluster)
  from tfplace.plan import local_devices  # imports TensorFlow

  return local_devices.local_cluster()


def is_live(name: str) -> bool:
  """Whether a name is of devices that run, here or on other hosts."""
  from tfplace.measure.remote import workers

  kind = name.partition(":")[0]
  return kind in ("gpus", "workers") or workers.is_hosts_file(name)


@contextlib.contextmanager
def opened(
  name: str, show: "Stages"
) -> "Iterator[tuple[Cluster, OpenCluster | None]]":
  """The cluster of a name, with its devices started where it has any.

  Args:
    name: of a preset, a file, or of devices that run.
    show: shows that devices start.

  Raises:
    TfplaceError: a bad name or file, or devices that do not start.
  """
  if not is_live(name):
    yield find_cluster(name), None
    return
  from tfplace import measure

  if name.partition(":")[0] == "gpus":
    measure.leave_gpus()
  with contextlib.ExitStack() as stack:
    with show("starting", f" {name}"):
      live = stack.enter_context(measure.open_cluster(name))
    yield live.cluster, live


@dataclasses.dataclass(frozen=True)
class LiveStep:
  """A step that can be run on devices that are open.

  Attributes:
    devices: the devices.
    traced: the step.
    options: of `MeasurementHarness`.
    measure_s: seconds of running steps: half of them to profile and calibrate.
  """

  devices: "OpenCluster"
  traced: "TracedStep"
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  measure_s: float = math.inf

  def shared(self, count: int) -> "LiveStep":
    """The same with a share of the seconds, for one of so many steps."""
    return dataclasses.replace(self, measure_s=self.measure_s / count)

  @property
  def run_s(self) -> float:
    """Seconds of running placements."""
    return self.measure_s / 2

  def profiled(
    self, problem: Problem, on_stage: stages.OnStage = stages.ignore
  ) -> Problem:
    """The problem with op times, overheads and links as measured.

    Raises:
      MeasurementError: the step could not be run.
    """
    return self.devices.profiled(
      problem,
      self.traced,
      measure_s=self.measure_s / 2,
      on_stage=on_stage,
      guesses=guesses,
      **self.options,
    )

  def harness(self, problem: Problem, **more: Any) -> "MeasurementHarness":
    """Measures placements of the problem; `more` options of the harness."""
    options = {"measure_s": self.run_s, **self.options, **more}
    return self.devices.harness(problem, self.traced, **options)

  def refitted(
    self,
    problem: Problem,
    placements: Sequence[Placement],
    measured: Sequence[Evaluation],
  ) -> Problem:
    """The problem with costs fitted to placements that ran."""
    return self.devices.refitted(problem, placements, measured)


def guesses(problem: Problem) -> np.ndarray:
  """[3, num_ops]: placements as a search ends with, to calibrate with.

  Of METIS and of short searches: with links as they were timed on their own,
  and as if they took some times as long, as they do in a step. Fewer where one
  finds nothing that fits.
  """
  from tfplace.measure.calibrate.fit import Factors

  budget = Budget(_GUESS_S, _GUESS_EVALUATIONS)
  dearer = Factors(_DEARER, _DEARER, _DEARER).of(problem)
  rows = []
  for strategy, on in (
    ("metis", problem),
    ("annealing", problem),
    ("annealing", dearer),
  ):
    placer = registry.get_placer(strategy)
    with contextlib.suppress(TfplaceError):
      found = placer.place(on, Simulator(on), budget, seed=0)
      rows.append(found.placement.devices)
  return np.array(rows, np.int32).reshape(-1, problem.graph.num_ops)


@contextlib.contextmanager
def measured_problems(
  models: Sequence[str],
  cluster: str,
  folder: str | os.PathLike[str],
  show: "Stages",
  **options: Any,
) -> Iterator[MeasuredProblems]:
  """Problems with measured costs, and what measures placements of each.

  A model is profiled once and kept in `folder` as graph and cluster files, so
  that a training run that goes on sees the problem with which it began.

  Args:
    models: of the zoo, or Keras files.
    cluster: name of devices that run.
    folder: where the problems are kept.
    show: shows what is done.
    **options: of `MeasurementHarness`.

  Raises:
    TfplaceError: a model or device that does not work.
  """
  from tfplace.plan import sources

  with opened(cluster, show) as (described, devices):
    if devices is None:
      raise MeasurementError(f"cluster {cluster!r} has no real devices")
    problems, evaluators = [], {}
    for model in models:
      with show("profiling", f" {model}") as on_stage:
        kind = "keras_model" if model.endswith(".keras") else "model"
        traced = sources.trace(kind, model)
        problem = Problem(sources.op_graph(traced, described), described)
        live = LiveStep(devices, traced, options)
        problem = _kept(problem, live, pathlib.Path(folder), on_stage)
      problems.append(problem)
      evaluators[id(problem)] = live.harness(problem, traced_steps=0)
    yield problems, lambda problem: evaluators[id(problem)]


def _kept(
  problem: Problem,
  live: LiveStep,
  folder: pathlib.Path,
  on_stage: stages.OnStage,
) -> Problem:
  """The problem as it was kept, or else with costs as measured now."""
  names = f"{problem.graph.name}.{problem.cluster.name}"
  graph_file, cluster_file = (
    folder / f"{names}.{part}".replace("/", "_")
    for part in ("json.gz", "cluster.json")
  )
  if not cluster_file.exists():
    problem = live.profiled(problem, on_stage)
    os.makedirs(folder, exist_ok=True)
    formats.save_graph(problem.graph, graph_file)
    formats.save_cluster(problem.cluster, cluster_file)
  return Problem(
    formats.load_graph(graph_file), formats.load_cluster(cluster_file)
  )
