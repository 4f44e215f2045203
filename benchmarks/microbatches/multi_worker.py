"""A model's steps under `tf.distribute.MultiWorkerMirroredStrategy`.

`run` starts two processes on loopback, each with one thread on a core of its
own and its half of the batch; this file is also their program. Keras' own
`train_step` runs in each replica, as `fit` would run it.
"""

import dataclasses
import ipaddress
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.errors import MeasurementError
from tfplace.measure.local import host

WORKERS = 2
_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True)
class Steps:
  """Times and losses of the steps.

  Attributes:
    step_us: [steps] of worker 0; workers wait for each other in every step.
    first_loss: of the whole batch, before the first update.
    last_loss: the same after the last timed step; it is what the last step of
      `MeasurementHarness`, which is not timed, shows.
  """

  step_us: list[float]
  first_loss: float
  last_loss: float


def run(
  model: str,
  data: Mapping[str, np.ndarray],
  weights: list[np.ndarray],
  warmup: int,
  steps: int,
) -> Steps:
  """Times steps of a model of `live.KERAS`.

  Args:
    model: its name.
    data: "x" and "y", the whole batch of every step.
    weights: of the model, in Keras' order.
    warmup: steps that are not timed, after the first one.
    steps: timed steps.

  Raises:
    MeasurementError: a process failed, with the end of what it said.
  """
  with tempfile.TemporaryDirectory() as folder:
    given = {f"weight_{i}": value for i, value in enumerate(weights)}
    np.savez(pathlib.Path(folder) / "given.npz", **data, **given)
    with host.reserved(WORKERS) as ports:
      addresses = [f"{host.LOOPBACK}:{port}" for port in ports]
      children = [
        _start(folder, model, warmup, steps, addresses, task)
        for task in range(WORKERS)
      ]
      try:
        replies = [_reply(child) for child in children]
      finally:
        for child in children:
          child.kill()
  halves = [[reply[key] for reply in replies] for key in ("first", "last")]
  first, last = (float(np.mean(losses)) for losses in halves)
  return Steps(replies[0]["step_us"], first, last)


def _start(
  folder: str,
  model: str,
  warmup: int,
  steps: int,
  addresses: list[str],
  task: int,
) -> subprocess.Popen[str]:
  place = {"type": "worker", "index": task}
  config = {"cluster": {"worker": addresses}, "task": place}
  arguments = [folder, model, str(warmup), str(steps), str(task)]
  return subprocess.Popen(
    [sys.executable, "-m", __spec__.name, *arguments],
    env={
      **os.environ,
      "TF_CONFIG": json.dumps(config),
      "TF_CPP_MIN_LOG_LEVEL": "2",
      "TF_GRPC_REUSE_PORT": "true",  # `run` holds the ports
      "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
      "CUDA_VISIBLE_DEVICES": "",
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _reply(child: subprocess.Popen[str]) -> dict[str, Any]:
  try:
    said, errors = child.communicate(timeout=_TIMEOUT_S)
  except subprocess.TimeoutExpired as error:
    raise MeasurementError(
      f"MultiWorkerMirroredStrategy did not end within {_TIMEOUT_S:g} s"
    ) from error
  if child.returncode:
    raise MeasurementError(
      f"MultiWorkerMirroredStrategy failed: {' '.join(errors.split())[-600:]}"
    )
  return json.loads(said.splitlines()[-1])


def main(arguments: list[str]) -> None:
  """A worker: trains on its half, and prints a line of JSON."""
  folder, model_name, warmup, steps, task = arguments
  cores = sorted(os.sched_getaffinity(0))
  os.sched_setaffinity(0, {cores[int(task) % len(cores)]})
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  own = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][int(task)]
  port = int(own.rpartition(":")[2])
  host.restrict(port, ipaddress.ip_address(host.LOOPBACK))
  from benchmarks.models import live

  given = np.load(pathlib.Path(folder) / "given.npz")
  count = sum(name.startswith("weight_") for name in given)
  with strategy.scope():
    model = live.KERAS[model_name][0]()
    model.set_weights([given[f"weight_{i}"] for i in range(count)])
  part = np.array_split(np.arange(len(given["x"])), WORKERS)[int(task)]
  x, y = (tf.constant(given[name][part]) for name in ("x", "y"))
  print(json.dumps(_train(strategy, model, x, y, int(warmup), int(steps))))


def _train(
  strategy: Any, model: Any, x: Any, y: Any, warmup: int, steps: int
) -> dict[str, Any]:
  import tensorflow as tf

  @tf.function(jit_compile=False)
  def step() -> Any:
    return strategy.run(model.train_step, args=((x, y),))

  def loss() -> float:
    return float(tf.reduce_mean(model.loss(y, model(x, training=False))))

  first = loss()
  for _ in range(1 + warmup):
    _wait(step())
  step_us = []
  for _ in range(steps):
    began = time.perf_counter()
    _wait(step())
    step_us.append(1e6 * (time.perf_counter() - began))
  return {"first": first, "last": loss(), "step_us": step_us}


def _wait(metrics: Mapping[str, Any]) -> None:
  for value in metrics.values():
    value.numpy()


if __name__ == "__main__":
  main(sys.argv[1:])
