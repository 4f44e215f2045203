"""Commands that every task of a cluster starts alike, in real processes."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

TIMEOUT_S = 240


def free_ports(count: int) -> int:
  """Returns the first of consecutive ports that are free.

  They lie below the ports that systems hand out, which other tests could be
  given before a task opens them.
  """
  while True:
    port = random.randrange(10_000, 30_000)
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
      for i in range(count):
        address = ("127.0.0.1", port + i)
        stack.enter_context(socket.create_server(address))
      return port


def tf_config(addresses: Sequence[str], task: Mapping | None) -> dict[str, str]:
  """Returns the environment variables of a task."""
  value = {"cluster": {"worker": list(addresses)}}
  return {"TF_CONFIG": json.dumps(value | ({"task": task} if task else {}))}


def slurm(task: int, tasks: int) -> dict[str, str]:
  """Returns the environment variables of a task on one node."""
  return {
    "SLURM_PROCID": str(task),
    "SLURM_LOCALID": str(task),
    "SLURM_STEP_NUM_TASKS": str(tasks),
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_STEP_TASKS_PER_NODE": str(tasks),
    "SLURMD_NODENAME": "127.0.0.1",
  }


@contextlib.contextmanager
def started(
  command: str,
  arguments: Sequence[str],
  environments: Sequence[Mapping[str, str]],
) -> Iterator[list[subprocess.Popen]]:
  """Starts the command once per environment; ends what is left on exit."""
  with contextlib.ExitStack() as stack:
    found = []
    for environment in environments:
      process = subprocess.Popen(
        [sys.executable, "-m", f"tfplace.bin.{command}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
      )
      stack.callback(process.wait)
      stack.callback(process.kill)
      found.append(process)
    yield found


def ends(processes: Sequence[subprocess.Popen]) -> list[tuple[int, str, str]]:
  """Returns the exit code, output and errors of each process."""
  found = []
  for process in processes:
    out, errors = process.communicate(timeout=TIMEOUT_S)
    found.append((process.returncode, out, errors))
  return found
