"""Roles of commands that every task of a cluster starts alike.

With `--cluster` of a cluster resolver, the first task runs the command, and all
others serve their worker until it ends.
"""

import sys
from collections.abc import Callable

from absl import flags

from tfplace.bin import cli
from tfplace.measure.local import host
from tfplace.measure.remote import resolvers, tasks, workers


def run(
  command: str,
  main: Callable[[flags.FlagValues], None],
  values: flags.FlagValues,
) -> None:
  """Runs `main`, or serves a worker while another task runs it.

  Args:
    command: name of the command.
    main: the command; runs in one task of the cluster.
    values: its flags.

  Raises:
    TfplaceError: see `main`; or this task's role or worker is invalid.
  """
  task = find(values)
  if task is None or task.worker is None:
    main(values)
    return
  warn_if_exposed(command, task.worker.address)
  number, of = task.index, len(task.hosts.workers)
  role = "serves its worker" if number else "runs the command"
  _say(command, f"worker {number} of {of}, {task.worker.address}, {role}")
  with tasks.taking_part(task, lambda how: say_dead(command, how)) as is_first:
    if is_first:
      main(values)


def find(values: flags.FlagValues) -> resolvers.Task | None:
  """Returns this task of `--cluster`, or None without a cluster resolver.

  Raises:
    MeasurementError: a variable or an answer is invalid.
  """
  if not resolvers.is_resolver(values.cluster or ""):
    return None
  cli.load_tensorflow()
  return resolvers.resolve(values.cluster)


def warn_if_exposed(command: str, bind: str) -> None:
  """Prints a warning if others than this host's users may reach a worker."""
  name, _ = workers.split_address(bind, any_port=True)
  if not host.resolve(name).is_loopback:
    _say(
      command,
      f"anyone who reaches {bind} can run TensorFlow ops as this user, without"
      " a password",
    )


def say_dead(command: str, how: str) -> None:
  """Prints that a worker died and is restarted."""
  _say(command, f"the server {how}; starting it again")


def _say(command: str, text: str) -> None:
  print(f"{command}: {text}", file=sys.stderr, flush=True)
