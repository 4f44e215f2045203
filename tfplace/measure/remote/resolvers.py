"""Workers named by TensorFlow's cluster resolvers.

`tf.distribute.cluster_resolver` reads the tasks of a cluster from TF_CONFIG
or from the variables of a Slurm job step. Every task has one worker, and the
first worker also runs the sessions. Resolvers know no kinds of machines, so all
workers have the same kind.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from tfplace.errors import FormatError, MeasurementError, shown
from tfplace.measure.remote import workers

NAMES = ("tf_config", "slurm")
_SLURM_PORT = 8888  # the default of SlurmClusterResolver
_SLURM_VARIABLES = (
  *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
  *("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"),
)
_JOBS = ("chief", "worker")  # in the order of their workers
_EXAMPLE = (
  '{"cluster": {"worker": ["a:2222", "b:2222"]},'
  ' "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Task:
  """Workers of a cluster, and the one that belongs to this process.

  Attributes:
    hosts: the workers of all tasks.
    index: index of this task's worker, or None for a process without one, which
      uses workers that run already.
  """

  hosts: workers.Hosts
  index: int | None

  @property
  def worker(self) -> workers.Worker | None:
    """Returns the worker of this task."""
    return None if self.index is None else self.hosts.workers[self.index]


def is_resolver(cluster: str) -> bool:
  """Returns whether the name of a cluster is that of a resolver."""
  return cluster.partition(":")[0] in NAMES


def resolve(cluster: str) -> Task:
  """Returns the workers of a cluster and this task's place among them.

  Args:
    cluster: "tf_config", "slurm" or "slurm:PORT" (of the first worker on a
      node).

  Raises:
    MeasurementError: the name, a variable or an answer is invalid.
  """
  kind, colon, option = cluster.partition(":")
  if colon and (kind == "tf_config" or not option):
    raise MeasurementError(
      f"cluster {shown(cluster)} is none of tf_config, slurm and slurm:PORT"
    )
  if kind == "tf_config":
    return _tf_config()
  return _slurm(option)


def _tf_config() -> Task:
  import tensorflow as tf

  text = os.environ.get("TF_CONFIG", "")
  if not text:
    raise MeasurementError(
      f"TF_CONFIG is {'empty' if 'TF_CONFIG' in os.environ else 'not set'};"
      f" set it to the tasks of the cluster, such as {_EXAMPLE}"
    )
  with _naming(f"TF_CONFIG={shown(text)}", f"its form is {_EXAMPLE}"):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    jobs = resolver.cluster_spec().as_dict()
    kind, index = resolver.task_type, resolver.task_id
    unknown = [job for job in (*jobs, kind) if job not in (*_JOBS, None)]
    if unknown:
      raise ValueError(f"{shown(unknown[0])} is neither 'chief' nor 'worker'")
    addresses = [a for job in _JOBS for a in jobs.get(job, ())]
    hosts = workers.Hosts("tf_config", tuple(map(workers.Worker, addresses)))
    if kind is None or (kind == "chief" and kind not in jobs):
      return Task(hosts, None)
    tasks = jobs.get(kind, ())
    if index is None or not 0 <= index < len(tasks):
      raise ValueError(
        f"task {kind!r} has index {index}, and the cluster has {len(tasks)} of"
        " its type"
      )
    before = len(jobs.get("chief", ())) if kind == "worker" else 0
    return Task(hosts, before + index)


def _slurm(option: str) -> Task:
  import tensorflow as tf

  if option and not (option.isdecimal() and 0 < int(option[:6]) < 2**16):
    raise MeasurementError(
      f"cluster {shown('slurm:' + option)}: {shown(option)} is no port, from 1"
      " to 65535"
    )
  for name in _SLURM_VARIABLES:
    if not os.environ.get(name):
      raise MeasurementError(
        f"{name} is not set; start the command in each task of a Slurm job"
        " step, with srun"
      )
  values = ", ".join(f"{n}={shown(os.environ[n])}" for n in _SLURM_VARIABLES)
  port = int(option or _SLURM_PORT)
  with _naming(values, "start the command with srun, which sets them"):
    # Only addresses are taken. Without these numbers, the resolver looks for
    # GPUs, and fails on a node that has none.
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
      port_base=port,
      gpus_per_node=workers.MAX_WORKERS,
      gpus_per_task=1,
      auto_set_gpu=False,
    )
    addresses = resolver.cluster_spec().as_dict()["worker"]
    hosts = workers.Hosts("slurm", tuple(map(workers.Worker, addresses)))
    # The resolver sorts nodes by name and assumes tasks in blocks, so its own
    # index may be that of another node.
    node, local = (
      os.environ.get(f"SLURM{n}") for n in ("D_NODENAME", "_LOCALID")
    )
    if node and local and local.isdecimal():
      address = f"{node}:{port + int(local)}"
      if address in addresses:
        return Task(hosts, addresses.index(address))
    if resolver.task_id is None:
      raise ValueError("SLURM_PROCID is no index of a task")
    return Task(hosts, resolver.task_id)


@contextlib.contextmanager
def _naming(variable: str, advice: str) -> Iterator[None]:
  """Turns errors of values into one sentence with their variable."""
  try:
    yield
  except (
    *(AssertionError, AttributeError, KeyError, RecursionError),
    *(RuntimeError, TypeError, ValueError, FormatError),
  ) as error:
    raise MeasurementError(f"{variable}: {error}; {advice}") from error
