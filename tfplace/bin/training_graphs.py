"""Flags and problems of the training graphs of tfplace-train."""

import dataclasses
import glob
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence

from absl import flags

from tfplace import formats
from tfplace.bin import cli, microbatch_flags, sources
from tfplace.errors import TrainingError
from tfplace.graph import Cluster, OpGraph, Problem
from tfplace.models import zoo
from tfplace.training import process

SOURCES = ("models", "graphs")
_KERAS = ".keras"  # Ending of a Keras file.


def define(values: flags.FlagValues) -> None:
  """Adds the flags that name training graphs."""
  cli.define_all(
    values,
    {
      "models": "Models of the zoo, such as inception_v3,nmt, or Keras files"
      " (.keras).",
      "graphs": "tfplace.graph.v1 files, or globs of them.",
      "cluster": "Devices: a preset such as k80x2, or a tfplace.cluster.v1"
      " file. With several values, each graph is placed on each cluster.",
    },
    [],
  )
  microbatch_flags.define_flags(values)


def check_microbatches(values: flags.FlagValues) -> None:
  """Checks that microbatches are only requested for extracted models.

  Raises:
    UsageError: no flag names a model to extract.
    ExtractionError: a number is invalid.
  """
  microbatch_flags.check_not_chosen(values)
  step = microbatch_flags.config(values)
  if step.is_whole and step.recompute.is_none and step.max_in_flight is None:
    return
  if not values.models:
    given = " ".join(microbatch_flags.arguments(values))
    raise cli.UsageError(
      f"{given} is for the steps of --models; the graphs of --graphs were"
      " traced already: split them with tfplace-extract"
    )
  microbatch_flags.check_given(values)


def check_names(values: flags.FlagValues) -> None:
  """Checks the names of clusters, graph files and models.

  Raises:
    TfplaceError: a name is unknown, or a file is missing.
  """
  for name in values.cluster:
    if not sources.is_live(name):
      sources.load_cluster(name)
  files = [("graphs", path) for path in _graph_files(values.graphs)]
  for model in values.models:
    if model.endswith(_KERAS):
      if os.path.isdir(_folder(values)):
        continue  # A resumed run has its graph.
      files.append(("models", model))
    else:
      zoo.check_name(model)
  for flag, path in files:
    if not os.path.exists(path):
      raise cli.UsageError(f"--{flag}: there is no file {path!r}")


def problems(values: flags.FlagValues) -> Iterator[Problem]:
  """Yields each graph on each cluster."""
  clusters = [(name, sources.load_cluster(name)) for name in values.cluster]
  for path in _graph_files(values.graphs):
    for _, cluster in clusters:
      yield Problem(formats.load_graph(path), cluster)
  for model in values.models:
    for name, cluster in clusters:
      yield Problem(_extracted(values, model, name, cluster), cluster)


def _hardware(cluster: Cluster) -> str:
  """Returns a digest that is equal for clusters with equal op costs."""
  models = {
    json.dumps([d.kind, d.extra.get("hardware")], sort_keys=True)
    for d in cluster.devices
  }
  return f"{zlib.crc32(' '.join(sorted(models)).encode()):08x}"


def _graph_files(patterns: Sequence[str]) -> list[str]:
  result = []
  for pattern in patterns:
    paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    if not paths:
      raise cli.UsageError(f"--graphs: nothing matches {pattern!r}")
    result += paths
  return result


def _folder(values: flags.FlagValues) -> str:
  return os.path.join(values.checkpoint_dir, "graphs")


def _extracted(
  values: flags.FlagValues, model: str, cluster_name: str, cluster: Cluster
) -> OpGraph:
  """Extracts a model's graph in another process, because it needs Keras 3.

  The graph is stored beside the checkpoints, so that a resumed run uses the
  same one. Clusters with the same hardware share a file.
  """
  arguments = microbatch_flags.arguments(values)
  parts = [os.path.basename(model), *(flag[2:] for flag in arguments)]
  name = ".".join(parts)
  folder = _folder(values)
  path = os.path.join(folder, f"{name}.{_hardware(cluster)}.json.gz")
  if not os.path.exists(path):
    os.makedirs(folder, exist_ok=True)
    kind = "keras_model" if model.endswith(_KERAS) else "model"
    command = [sys.executable, "-m", "tfplace.bin.extract", f"--{kind}={model}"]
    command += [f"--cluster={cluster_name}", f"--output={path}"]
    command += arguments
    with cli.showing_progress(f"Extracting {name}"):
      done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != process.SWITCH},
      )
    if done.returncode:
      lines = done.stderr.strip().splitlines() or ["extraction failed"]
      raise TrainingError(f"model {name}: {lines[-1]}")
  graph = formats.load_graph(path)
  is_variant = name != os.path.basename(model)
  return dataclasses.replace(graph, name=name) if is_variant else graph
