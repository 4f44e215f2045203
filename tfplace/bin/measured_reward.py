"""Problems on real devices for tfplace-train: --reward=measure.

A model is traced, profiled once, and kept beside the checkpoints as graph and
cluster files, so that a run that goes on sees the problem with which it began.
For a training process, in which models are Keras 3's all the same.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfplace import core, formats
from tfplace.bin import cli
from tfplace.core.protocols import Evaluator
from tfplace.plan import sources

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure import OpenCluster

Opened = tuple[list[core.Problem], Callable[[core.Problem], Evaluator]]


@contextlib.contextmanager
def opened(
  models: Sequence[str], cluster: str, folder: str, **options: Any
) -> Iterator[Opened]:
  """Problems with measured costs, and what measures placements of each.

  Args:
    models: of the zoo, or Keras files.
    cluster: "workers:N", "gpus", "gpus:N" or a hosts file.
    folder: where the problems are kept.
    **options: of `MeasurementHarness`.

  Raises:
    TfplaceError: a model or device that does not work.
  """
  from tfplace import measure

  with contextlib.ExitStack() as stack:
    with cli.showing_progress(f"Starting {cluster}"):
      live = stack.enter_context(measure.open_cluster(cluster))
    problems, evaluators = [], {}
    for model in models:
      with cli.showing_progress(f"Profiling {model}"):
        graph, traced = _traced(model, live)
        problem = _problem(graph, traced, live, pathlib.Path(folder), options)
      problems.append(problem)
      evaluators[id(problem)] = live.harness(
        problem, traced, traced_steps=0, **options
      )
    yield problems, lambda problem: evaluators[id(problem)]


def _traced(
  model: str, live: "OpenCluster"
) -> "tuple[core.OpGraph, TracedStep]":
  kind = "keras_model" if model.endswith(".keras") else "model"
  traced = sources.trace(kind, model)
  return sources.op_graph(traced, live.cluster), traced


def _problem(
  graph: core.OpGraph,
  traced: "TracedStep",
  live: "OpenCluster",
  folder: pathlib.Path,
  options: dict[str, Any],
) -> core.Problem:
  """The problem as it was kept, or else with costs as measured now."""
  files = [
    folder / f"{graph.name}.{live.cluster.name}.{part}".replace("/", "_")
    for part in ("json.gz", "cluster.json")
  ]
  if not files[1].exists():
    problem = live.profiled(
      core.Problem(graph, live.cluster), traced, **options
    )
    os.makedirs(folder, exist_ok=True)
    formats.save_graph(problem.graph, files[0])
    formats.save_cluster(problem.cluster, files[1])
  return core.Problem(
    formats.load_graph(files[0]), formats.load_cluster(files[1])
  )
