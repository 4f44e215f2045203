"""Flags of all commands that name a graph, a cluster and a placement."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

from tfplace import formats
from tfplace.bin import cli, microbatch_flags, model_flags
from tfplace.cost import registry
from tfplace.graph import Cluster, OpGraph, Placement, Problem
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.graph.op_graph import XLA
from tfplace.graph.progress import Progress, silent
from tfplace.plan import clusters, graph_cache
from tfplace.plan import source as source_lib
from tfplace.plan.clusters import find_cluster as load_cluster
from tfplace.plan.clusters import is_live
from tfplace.plan.config import COMPILE, MEASURED, PlanConfig
from tfplace.plan.source import GRAPH, ModelSource
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure.cluster import OpenCluster


def define_flags(values: flags.FlagValues) -> None:
  """Adds `--placement`, `--cluster` and the flags of a graph source."""
  define_source_flags(values)
  define_cluster_flag(values)
  cli.define(values, "placement", "tfplace.placement.v1 file.")


def load(values: flags.FlagValues) -> Placement:
  """Loads the placement that the flags name.

  Raises:
    TfplaceError: a flag is missing, or a file is invalid or of another graph.
  """
  chosen_source(values)
  cluster = load_cluster(cli.required(values, "cluster"))
  path = cli.required(values, "placement")
  graph, _ = load_source(values, cluster)
  return formats.load_placement(path, Problem(graph, cluster))


_SOURCES = {
  "model": "Model of the zoo, such as inception_v3 or nmt.",
  "saved_model": "SavedModel directory.",
  "keras_model": "Keras 3 model file (.keras).",
  "graph_def": "GraphDef file (.pb or .pbtxt).",
  "graph": "tfplace.graph.v1 file (.json or .json.gz).",
}


def define_source_flags(values: flags.FlagValues) -> None:
  """Adds the flags of a graph source."""
  cli.define_all(values, _SOURCES)
  model_flags.define_flags(values)
  text = (
    "Directory that caches extracted graphs. Default: tfplace in the user's"
    " cache directory. An empty value disables the cache."
  )
  cli.define(values, "graph_cache_dir", text)
  text = (
    "Examples per step. Default: the model's own, or 32 where a SavedModel or"
    " GraphDef leaves them open. A --graph has its own."
  )
  cli.define(values, "batch_size", text, kind=int, least=1)
  text = "Use the training step rather than inference."
  cli.define(values, "training", text, True)
  microbatch_flags.define_flags(values)
  text = (
    "Whether XLA compiles ops of a layer, pass and microbatch together: xla,"
    " none, or auto, which is xla for --keras_model on GPUs."
  )
  cli.define(values, "compile", text, AUTO, choices=COMPILE)
  text = (
    "Cost model that estimates op times. On running devices it only covers ops"
    f" that a measured step does not time, and {MEASURED} is the default one."
  )
  cli.define(values, "costs", text, registry.DEFAULT)
  text = (
    "Load and run a graph even if its ops may access files, processes, Python"
    " or the network. Use it only for trusted graphs."
  )
  cli.define(values, "allow_side_effects", text, False)


def define_cluster_flag(
  values: flags.FlagValues, default: str | None = None
) -> None:
  """Adds `--cluster`."""
  cli.define(
    values,
    "cluster",
    "Devices: a preset such as k80x2, v100x2+p100x2 (unequal GPUs of one host),"
    " 2*v100x8 or 2*v100x4+a100x8 (hosts in a network); workers:N for N local"
    " TensorFlow processes; gpus for the GPUs of this host; gpus:N for N"
    " logical GPUs of its first GPU; a tfplace.hosts.v1 file (workers on"
    " several machines, each started by tfplace-worker); tf_config or"
    " slurm (slurm:PORT) for the workers of a job whose tasks all start this"
    " command; or a tfplace.cluster.v1 file.",
    default,
  )


def define_dask_flag(values: flags.FlagValues, what: str) -> None:
  """Adds `--dask`; `what` is the work that its workers do."""
  cli.define(
    values,
    "dask",
    f"Address of a Dask scheduler, such as tcp://10.0.0.1:8786, whose workers"
    f" {what}; or local for one worker, in a thread of this process."
    " Needs tfplace[dask].",
  )


def define_measure_s_flag(values: flags.FlagValues) -> None:
  """Adds `--measure_s`."""
  text = (
    "Time limit for running steps on the devices, in seconds, including profile"
    " and calibration. Slow steps run less often. 0 means no limit."
  )
  cli.define(values, "measure_s", text, 0.0, least=0.0)


def chosen_source(values: flags.FlagValues, may_choose: bool = False) -> str:
  """Returns the name of the given source flag.

  Args:
    may_choose: whether the command can choose the number of microbatches.

  Raises:
    UsageError: no source flag is given, or more than one.
    TfplaceError: the source does not support the requested microbatches.
  """
  given = [name for name in _SOURCES if values[name].value]
  if len(given) != 1:
    choices = ", ".join(f"--{name}" for name in _SOURCES)
    named = " and ".join(f"--{name}" for name in given) or "none"
    raise cli.UsageError(f"give exactly one of {choices}; found {named}")
  source = str(values[given[0]].value)
  if not may_choose:
    microbatch_flags.check_not_chosen(values)
  source_lib.check_variant(
    microbatch_flags.config(values), given[0], source, values.training
  )
  microbatch_flags.check_given(values)
  if values["import"].value and given[0] != "keras_model":
    raise cli.UsageError("--import is for the classes of --keras_model")
  return given[0]


def open_source(values: flags.FlagValues, kind: str) -> ModelSource:
  """Returns the model of a source flag.

  Raises:
    TfplaceError: a flag is invalid.
  """
  if kind == GRAPH and values.compile == XLA:
    raise cli.UsageError(
      "--compile=xla applies to models, not to --graph, whose ops have no"
      " shapes; extract the model with it"
    )
  if kind == GRAPH and values.batch_size is not None:
    raise cli.UsageError(
      f"--batch_size={values.batch_size} applies to models, not to --graph,"
      " whose costs are of its own batch; extract the model with it"
    )
  return source_lib.open_source(
    str(values[kind].value),
    kind=kind,
    training=values.training,
    batch_size=values.batch_size,
    sizes=model_flags.sizes(values),
    sample=model_flags.batch(values, kind),
    allow_side_effects=values.allow_side_effects,
  )


def request(values: flags.FlagValues, **fields: Any) -> PlanConfig:
  """Returns the request of the source flags, with further fields.

  Raises:
    TfplaceError: a flag is invalid.
  """
  return PlanConfig(
    variant=microbatch_flags.config(values),
    batch_size=values.batch_size,
    costs=_estimated_costs(values),
    compile=values.compile,
    **fields,
  )


def _estimated_costs(values: flags.FlagValues) -> str:
  """Returns the cost model of ops that no measured step times."""
  if values.costs != MEASURED:
    return values.costs
  if not values.cluster or not is_live(values.cluster):
    raise cli.UsageError(
      f"--costs={MEASURED} needs running devices, such as --cluster=gpus, and"
      f" --cluster={values.cluster} describes its devices: leave --costs out"
    )
  return registry.DEFAULT


@dataclasses.dataclass(eq=False, kw_only=True)
class FlagSteps(Steps):
  """Step variants of the source that flags name.

  Attributes:
    values: the flags.
  """

  values: flags.FlagValues

  def graph(
    self,
    variant: VariantConfig,
    needs_trace: bool = False,
    on_stage: Progress = silent,
  ) -> "tuple[OpGraph, TracedStep | None]":
    """Loads or extracts the op graph of a step variant, with a display."""
    if self.values.graph:
      return super().graph(variant)
    with (
      model_flags.imported(self.values),
      cli.showing_progress(f"Extracting {self.source.name}") as show,
    ):

      def show_loaded(stage: str) -> None:
        show("starting TensorFlow")  # Any stage requires it.
        cli.load_tensorflow()
        show(stage)

      return super().graph(variant, needs_trace, show_loaded)


def load_source(
  values: flags.FlagValues, cluster: Cluster, needs_trace: bool = False
) -> "tuple[OpGraph, TracedStep | None]":
  """Loads the graph that the flags name, and the traced step if required.

  The microbatches of `--placement`, by the names of its ops, go before those of
  the flags.

  Raises:
    UsageError: the flags contradict the placement.
    TfplaceError: a flag, file or model is invalid, or the step cannot be split
      into these microbatches.
  """
  kind, config = chosen_source(values), request(values)
  source, variant = open_source(values, kind), config.variant
  if "placement" in values and source.takes_microbatches:
    variant = dataclasses.replace(
      microbatches_of(formats.load_assignments(values.placement)),
      allow_batch_statistics=variant.allow_batch_statistics,
    )
    microbatch_flags.check_agrees(values, variant)
  steps = FlagSteps(
    source, cluster, config, graph_cache_of(values), values=values
  )
  return steps.graph(variant, needs_trace)


def graph_cache_of(values: flags.FlagValues) -> graph_cache.GraphCache | None:
  """Returns the graph cache of the flags, or None."""
  if values["import"].value:  # No hash covers these modules.
    return None
  folder = values.graph_cache_dir
  if folder is None:
    folder = graph_cache.default_directory()
  return graph_cache.GraphCache(folder) if folder else None


@contextlib.contextmanager
def opened_cluster(
  values: flags.FlagValues,
) -> "Iterator[tuple[Cluster, OpenCluster | None]]":
  """Opens the cluster of `--cluster`, and its running devices if any.

  Raises:
    TfplaceError: the name or file is invalid, or devices do not start.
  """
  name = cli.required(values, "cluster")
  if is_live(name):
    cli.load_tensorflow()
  with clusters.opened(name, Stages(cli.show_stage)) as opened:
    yield opened
