"""From anything that holds a model to its op graph: trace, then costs.

This is the one place that joins the model zoo, the tracing of
`graph.extract` and the costs of `cost`. It imports TensorFlow when called.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfplace.errors import ExtractionError
from tfplace.graph.cluster import Cluster
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.presets import cluster_preset

if TYPE_CHECKING:
  import keras

  from tfplace.graph.extract.traced import TracedStep

KINDS = ("model", "saved_model", "keras_model", "graph_def")
DEFAULT_CLUSTER = "v100x1"


def trace(
  kind: str,
  source: str,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
) -> "TracedStep":
  """Traces one step of a model that is named or lies in a file.

  Args:
    kind: one of `KINDS`.
    source: a name of the zoo, a SavedModel directory, a Keras file, or a
      GraphDef file.
    batch_size: examples per step; None is the model's own default.
    training: the training step, or inference; a SavedModel and a GraphDef are
      what they are.
    sizes: further sizes of a zoo model, such as {"length": 20}.

  Raises:
    ExtractionError: names the file or model and what is wrong with it.
  """
  from tfplace.graph import extract as tracing

  if sizes and kind != "model":
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for {source!r}, which is no zoo model"
    )
  if kind == "model":
    return _trace_zoo(source, batch_size, training, sizes or {})
  if kind == "saved_model":
    return tracing.trace_saved_model(source, batch_size)
  if kind == "keras_model":
    return tracing.trace_keras_file(source, batch_size, training)
  if kind == "graph_def":
    return tracing.trace_graph_def(source, batch_size)
  raise ExtractionError(f"unknown kind of source {kind!r}: one of {KINDS}")


def _trace_zoo(
  name: str,
  batch_size: int | None,
  training: bool,
  sizes: Mapping[str, int],
) -> "TracedStep":
  import dataclasses

  from tfplace import models
  from tfplace.graph import extract as tracing

  zoo = models.build(name, batch_size, **sizes)
  traced = tracing.trace_keras(
    zoo.model, zoo.batch_size, training, zoo.sample(seed=0)
  )
  return dataclasses.replace(traced, name=name)


def op_graph(traced: "TracedStep", cluster: Cluster) -> OpGraph:
  """The op graph of a traced step, with costs for the cluster's kinds."""
  from tfplace import cost

  return cost.op_graph(traced, cluster)


def extract(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: Cluster | str = DEFAULT_CLUSTER,
  *,
  batch_size: int | None = None,
  training: bool = True,
) -> OpGraph:
  """The dataflow graph of a model's step, with the cost of every op.

  Args:
    model: a Keras 3 model (compiled, if `training`), a name of the zoo, or the
      path of a Keras file (.keras), a GraphDef (.pb, .pbtxt) or a SavedModel
      directory.
    cluster: whose device kinds are costed; a preset's name or a `Cluster`.
    batch_size: examples per step; None is the model's own default.
    training: the training step (forward, gradients, optimizer) or inference.

  Raises:
    ExtractionError: names the model or file and what is wrong with it.
    FormatError: no such preset.
  """
  from tfplace.graph import extract as tracing

  if isinstance(cluster, str):
    cluster = cluster_preset(cluster)
  if isinstance(model, str | os.PathLike):
    source = os.fspath(model)
    traced = trace(
      _kind_of(source), source, batch_size=batch_size, training=training
    )
  else:
    traced = tracing.trace_keras(model, batch_size, training)
  return op_graph(traced, cluster)


def _kind_of(source: str) -> str:
  if source.endswith((".keras", ".h5")):
    return "keras_model"
  if source.endswith((".pb", ".pbtxt")):
    return "graph_def"
  return "saved_model" if os.path.isdir(source) else "model"
