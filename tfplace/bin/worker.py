"""tfplace-worker: serves this machine's devices to other machines.

Starts one TensorFlow worker, prints its address in one line, and serves until
SIGTERM or SIGINT. Name the addresses of all workers in a tfplace.hosts.v1 file,
and pass it to tfplace-place or tfplace-measure as --cluster. With
--cluster=tf_config or slurm, every task of a job finds its own address.

WARNING: TensorFlow's protocol has no authentication and no encryption. Anyone
who reaches the port can run any TensorFlow op as this user, including ops that
read and write files. Bind to loopback (and connect machines by SSH tunnels), or
to a network in which every host is trusted, but never to an address that the
Internet can reach.
"""

import contextlib
import sys

from absl import flags

from tfplace.bin import cli, signals, tasks
from tfplace.measure.remote import serving, workers
from tfplace.measure.remote import tasks as remote_tasks

_NAME = "tfplace-worker"


def _define(values: flags.FlagValues) -> None:
  text = "host:port to listen on; port 0 selects a free port."
  cli.define(values, "bind", text, "127.0.0.1:2222")
  text = (
    "Cluster resolver that gives the address to listen on, instead of --bind:"
    " tf_config, slurm or slurm:PORT."
  )
  cli.define(values, "cluster", text)
  text = "Number of threads that one op may use; 0 means one per core."
  cli.define(values, "threads", text, 0, least=0)
  cli.define(values, "gpus", "Also serve the GPUs of this machine.", False)


def _main(values: flags.FlagValues) -> None:
  bind = _bind(values)
  name, port = workers.split_address(bind, any_port=True)
  tasks.warn_if_exposed(_NAME, bind)
  server = serving.Server(name, port, values.threads, values.gpus)
  with contextlib.suppress(KeyboardInterrupt, signals.Ended):
    serving.serve(
      server,
      lambda address: print(f"{_NAME}: serving on {address}", flush=True),
      lambda how: tasks.say_dead(_NAME, how),
    )


def _bind(values: flags.FlagValues) -> str:
  """Returns the value of `--bind`, or this task's address in `--cluster`.

  Raises:
    TfplaceError: both flags are given, or the task has no address.
  """
  if not values.cluster:
    return str(values.bind)
  if values["bind"].present:
    raise cli.UsageError(
      f"--bind={values.bind} and --cluster={values.cluster} both give the"
      " address to listen on; leave one out"
    )
  task = tasks.find(values)
  if task is None:
    raise cli.UsageError(
      f"--cluster={values.cluster} is no cluster resolver (tf_config or"
      " slurm); give --bind=HOST:PORT"
    )
  if task.worker is None:
    raise cli.UsageError(
      "TF_CONFIG names no task of its cluster for this process, so there is no"
      ' address to listen on; add "task": {"type": "worker", "index": 0}'
    )
  remote_tasks.check_reachable(task)
  return task.worker.address


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
