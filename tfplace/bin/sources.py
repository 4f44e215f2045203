"""The flags that name a graph and a cluster, the same for every command."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from absl import flags

from tfplace import cache
from tfplace import graph as graph_lib
from tfplace.bin import cli, custom_objects, guarded
from tfplace.errors import shown
from tfplace.graph.extract.stages import OnStage
from tfplace.graph.presets import find_cluster

if TYPE_CHECKING:
  from tfplace.graph.extract.traced import TracedStep
  from tfplace.measure import OpenCluster

_SOURCES = ("model", "saved_model", "keras_model", "graph_def", "graph")


@dataclasses.dataclass(frozen=True)
class Source:
  """What is to be placed.

  Attributes:
    graph: the op graph, with costs for the cluster's device kinds.
    traced: the step as a session runs it; None for `--graph`, and where
      nobody needs it.
  """

  graph: graph_lib.OpGraph
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


def define_cluster_flag(
  values: flags.FlagValues, default: str | None = None
) -> None:
  """Adds `--cluster`."""
  flags.DEFINE_string(
    "cluster",
    default,
    "Devices: a preset such as k80x2 or v100x4, workers:N for N local"
    " TensorFlow processes, gpus for this host's own (gpus:N splits its"
    " first into N logical ones), a tfplace.hosts.v1 file (workers on several"
    " machines, each started by tfplace-worker), or a tfplace.cluster.v1 file.",
    flag_values=values,
  )


def chosen_source(values: flags.FlagValues) -> str:
  """The one source flag that was given.

  Raises:
    UsageError: none, or more than one.
  """
  given = [name for name in _SOURCES if values[name].value]
  if len(given) != 1:
    choices = ", ".join(f"--{name}" for name in _SOURCES)
    found = " and ".join(f"--{name}" for name in given) or "none"
    raise cli.UsageError(f"give exactly one of {choices}; found {found}")
  return given[0]


def load_source(
  values: flags.FlagValues,
  cluster: graph_lib.Cluster,
  needs_trace: bool = False,
) -> Source:
  """The graph that the flags name, with costs for the cluster's kinds.

  Args:
    values: the command's flags.
    cluster: whose kinds are costed.
    needs_trace: the step itself is wanted, not only its graph.

  Raises:
    TfplaceError: a bad flag, file or model.
  """
  kind = chosen_source(values)
  if values["import"].value and kind != "keras_model":
    raise cli.UsageError("--import is for the classes of --keras_model")
  if kind == "graph":
    return Source(graph_lib.load_graph(values.graph), None)
  from tfplace import extraction

  name = str(values[kind].value)
  with (
    custom_objects.imported(values["import"].value or ()),
    guarded.holding_notices(),
    cli.showing_progress(f"Extracting {name}") as on_stage,
  ):
    loaded = extraction.load_or_extract(
      kind,
      name,
      cluster,
      batch_size=values.batch_size,
      training=values.training,
      sizes=model_sizes(values),
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


def _graph_cache(values: flags.FlagValues) -> cache.GraphCache | None:
  folder = values.graph_cache_dir
  if folder is None:
    folder = cache.default_directory()
  return cache.GraphCache(folder) if folder else None


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


def load_cluster(name: str) -> graph_lib.Cluster:
  """A cluster that needs no device of this host: a preset or a file.

  Raises:
    FormatError: no such preset, or a broken file.
  """
  return find_cluster(name)


def is_live(name: str) -> bool:
  """Whether `--cluster` names real devices, here or on other hosts."""
  from tfplace.measure import hosts_file

  kind = name.partition(":")[0]
  return kind in ("gpus", "workers") or hosts_file.is_hosts_file(name)


@contextlib.contextmanager
def opened_cluster(
  values: flags.FlagValues,
) -> "Iterator[tuple[graph_lib.Cluster, OpenCluster | None]]":
  """The cluster, and the live devices behind it where there are any.

  Raises:
    TfplaceError: a bad name or file, or devices that do not start.
  """
  name = cli.required(values, "cluster")
  if not is_live(name):
    yield load_cluster(name), None
    return
  from tfplace import measure

  cli.load_tensorflow()
  if name.partition(":")[0] == "gpus":
    measure.leave_gpus()
  with contextlib.ExitStack() as stack:
    with cli.showing_progress(f"Starting {name}"):
      live = stack.enter_context(measure.open_cluster(name))
    yield live.cluster, live
