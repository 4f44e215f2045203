"""The flags that name a graph, a cluster and a placement, for every command."""

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from absl import flags

from tfplace import core, formats
from tfplace.bin import cli, guarded, splits
from tfplace.core.microbatches import MicrobatchConfig, microbatches_of
from tfplace.cost import registry
from tfplace.errors import shown
from tfplace.extraction.stages import OnStage
from tfplace.plan import Stages, clusters, graph_cache
from tfplace.plan import sources as plan_sources
from tfplace.plan.clusters import find_cluster as load_cluster
from tfplace.plan.clusters import is_live

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure import OpenCluster


def define_flags(values: flags.FlagValues) -> None:
  """Adds `--placement`, `--cluster` and the flags of a graph source."""
  define_source_flags(values)
  define_cluster_flag(values)
  flags.DEFINE_string(
    "placement", None, "tfplace.placement.v1 file.", flag_values=values
  )


def load(values: flags.FlagValues) -> core.Placement:
  """The placement that the flags name.

  Raises:
    TfplaceError: a flag is missing, or a file is broken or of another graph.
  """
  chosen_source(values)
  cluster = load_cluster(cli.required(values, "cluster"))
  path = cli.required(values, "placement")
  microbatches = microbatches_of_placement(values, path)
  graph = load_source(values, cluster, microbatches=microbatches).graph
  return formats.load_placement(path, core.Problem(graph, cluster))


_SOURCES = ("model", "saved_model", "keras_model", "graph_def", "graph")


@dataclasses.dataclass(frozen=True)
class Source:
  """What is to be placed.

  Attributes:
    graph: the op graph, with costs for the cluster's device kinds.
    traced: the step as a session runs it; None for `--graph`, and where
      nobody needs it.
  """

  graph: core.OpGraph
  traced: "TracedStep | None"


def define_source_flags(values: flags.FlagValues) -> None:
  """Adds the flags of a graph source."""
  text = {
    "model": "Model of the zoo, such as inception_v3 or nmt.",
    "saved_model": "SavedModel directory.",
    "keras_model": "Keras 3 model file (.keras).",
    "graph_def": "GraphDef file (.pb or .pbtxt).",
    "graph": "tfplace.graph.v1 file (.json or .json.gz).",
  }
  for name in _SOURCES:
    flags.DEFINE_string(name, None, text[name], flag_values=values)
  flags.DEFINE_list(
    "import",
    [],
    "Python modules that define the custom classes and functions of"
    " --keras_model, such as my.module; also found in the working directory.",
    flag_values=values,
  )
  flags.DEFINE_integer(
    "batch_size",
    None,
    "Examples per step; the model's own default where left out.",
    lower_bound=1,
    flag_values=values,
  )
  flags.DEFINE_list(
    "model_sizes",
    [],
    "Further sizes of a zoo model, such as length=20,vocabulary=5000.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "training", True, "The training step, or inference.", flag_values=values
  )
  splits.define_flags(values)
  flags.DEFINE_string(
    "costs",
    registry.DEFAULT,
    "The cost model that estimates what each op takes; on real devices, which"
    " are measured, of ops that a run does not time.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "graph_cache_dir",
    None,
    "Where extracted graphs are kept by a hash of all that decides them; the"
    " user's cache directory where left out, empty for nowhere.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "allow_side_effects",
    False,
    "Load and run a graph even if its ops may touch files, processes, Python"
    " or the network: only for graphs from people you trust.",
    flag_values=values,
  )


def microbatches_of_placement(
  values: flags.FlagValues, path: str
) -> MicrobatchConfig:
  """How the step is split that a placement is of, by the names of its ops.

  Raises:
    UsageError: the flags say something else.
    FormatError: the file is no placement file.
  """
  asked = splits.config(values)
  if chosen_source(values) not in plan_sources.MICROBATCH_KINDS:
    return asked
  found = microbatches_of(formats.load_assignments(path))
  found = dataclasses.replace(
    found, allow_batch_statistics=asked.allow_batch_statistics
  )
  splits.check_says(values, found, path)
  return found


def define_cluster_flag(
  values: flags.FlagValues, default: str | None = None
) -> None:
  """Adds `--cluster`."""
  flags.DEFINE_string(
    "cluster",
    default,
    "Devices: a preset such as k80x2 or 2*v100x8 (two hosts), workers:N for N"
    " local TensorFlow processes, gpus for this host's own (gpus:N splits its"
    " first into N logical ones), a tfplace.hosts.v1 file (workers on several"
    " machines, each started by tfplace-worker), or a tfplace.cluster.v1 file.",
    flag_values=values,
  )


def define_measure_s_flag(values: flags.FlagValues) -> None:
  """Adds `--measure_s`."""
  flags.DEFINE_float(
    "measure_s",
    0.0,
    "Seconds of running steps on the devices, profile and calibration included;"
    " slow steps are run less often. 0 sets no bound.",
    lower_bound=0.0,
    flag_values=values,
  )


def chosen_source(values: flags.FlagValues, may_choose: bool = False) -> str:
  """The one source flag that was given.

  Args:
    values: the flags.
    may_choose: the command can choose the number of microbatches.

  Raises:
    UsageError: none, or more than one.
    TfplaceError: it cannot be split as the flags want.
  """
  given = [name for name in _SOURCES if values[name].value]
  if len(given) != 1:
    choices = ", ".join(f"--{name}" for name in _SOURCES)
    found = " and ".join(f"--{name}" for name in given) or "none"
    raise cli.UsageError(f"give exactly one of {choices}; found {found}")
  source = str(values[given[0]].value)
  if splits.is_chosen(values) and not may_choose:
    raise cli.UsageError(
      "--microbatches=auto: only tfplace-place chooses it, with the placement,"
      " which then says how its step is split; give a number, or leave it out"
      " where a placement is given"
    )
  plan_sources.check_microbatches(
    splits.config(values), given[0], source, values.training
  )
  splits.check_given(values)
  return given[0]


def load_source(
  values: flags.FlagValues,
  cluster: core.Cluster,
  needs_trace: bool = False,
  microbatches: MicrobatchConfig | None = None,
) -> Source:
  """The graph that the flags name, and the step itself where it is needed.

  Args:
    values: the flags.
    cluster: whose device kinds are costed.
    needs_trace: the step is wanted, too.
    microbatches: microbatches of the step; None takes those of the flags.

  Raises:
    TfplaceError: a bad flag, file or model, or the step cannot be split so.
  """
  kind = chosen_source(values, may_choose=microbatches is not None)
  if microbatches is None:
    microbatches = splits.config(values)
  if values["import"].value and kind != "keras_model":
    raise cli.UsageError("--import is for the classes of --keras_model")
  name = str(values[kind].value)
  if kind == "graph":
    plan_sources.check_microbatches(microbatches, kind, name, values.training)
    return Source(formats.load_graph(name), None)
  with (
    imported(values["import"].value or ()),
    guarded.holding_notices(),
    cli.showing_progress(f"Extracting {name}") as on_stage,
  ):
    loaded = plan_sources.load_or_extract(
      kind,
      name,
      cluster,
      batch_size=values.batch_size,
      training=values.training,
      sizes=model_sizes(values),
      costs=values.costs,
      microbatches=microbatches,
      # What their own modules hold decides custom classes, and no hash has it.
      cache=None if values["import"].value else _graph_cache(values),
      needs_trace=needs_trace,
      allow_side_effects=values.allow_side_effects,
      on_stage=_loading_tensorflow(on_stage),
    )
  return Source(*loaded)


def _loading_tensorflow(on_stage: OnStage) -> OnStage:
  """Has TensorFlow loaded before the first stage, which needs it."""

  def loading(what: str, count: Callable[[], int] | None = None) -> None:
    on_stage("starting TensorFlow")
    cli.load_tensorflow()
    on_stage(what, count)

  return loading


def _graph_cache(values: flags.FlagValues) -> graph_cache.GraphCache | None:
  folder = values.graph_cache_dir
  if folder is None:
    folder = graph_cache.default_directory()
  return graph_cache.GraphCache(folder) if folder else None


def model_sizes(values: flags.FlagValues) -> dict[str, int]:
  """What `--model_sizes` says.

  Raises:
    UsageError: an item is not of the form name=number.
  """
  result = {}
  for item in values.model_sizes:
    key, _, number = item.partition("=")
    if not cli.is_count(number):
      raise cli.UsageError(
        f"--model_sizes: {shown(item)} is not of the form name=number"
      )
    result[key] = int(number)
  return result


@contextlib.contextmanager
def opened_cluster(
  values: flags.FlagValues,
) -> "Iterator[tuple[core.Cluster, OpenCluster | None]]":
  """The cluster of `--cluster`, and its running devices if it has any.

  Raises:
    TfplaceError: a bad name or file, or devices that do not start.
  """
  name = cli.required(values, "cluster")
  if is_live(name):
    cli.load_tensorflow()
  with clusters.opened(name, Stages(cli.show_stage)) as found:
    yield found


@contextlib.contextmanager
def imported(modules: Sequence[str]) -> Iterator[None]:
  """Inside, Keras knows what the modules define, registered or not.

  Raises:
    UsageError: a module is missing, or fails as it is imported.
  """
  if not modules:
    yield
    return
  cli.load_tensorflow()
  import keras

  objects: dict[str, Any] = {}
  for name in modules:
    objects |= _defined_in(_import(name))
  with keras.saving.custom_object_scope(objects):
    yield


def _import(name: str) -> ModuleType:
  directory = os.getcwd()
  sys.path.append(directory)
  try:
    return importlib.import_module(name)
  except Exception as error:
    raise cli.UsageError(
      f"--import: module {name!r} cannot be imported:"
      f" {type(error).__name__}: {error}"
    ) from error
  finally:
    sys.path.remove(directory)


def _defined_in(module: ModuleType) -> dict[str, Any]:
  """Its public classes and functions, those that it only imports aside."""
  return {
    name: value
    for name, value in vars(module).items()
    if not name.startswith("_")
    and callable(value)
    and getattr(value, "__module__", None) == module.__name__
  }
