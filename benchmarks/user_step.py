"""The user's own step of a model, in processes of its own.

`run` times Keras' `train_step` as `fit` runs it: on one device, without or with
XLA, or on all devices by `tf.distribute`. This file is also the program of
these processes. On `workers:N`, each has one thread on a core of its own, and
they meet on loopback.
"""

import contextlib
import dataclasses
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

PLAIN, XLA, DISTRIBUTED = "one device", "one device, XLA", "tf.distribute"
WAYS = (PLAIN, XLA, DISTRIBUTED)
_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True)
class Steps:
  """Times and losses of the steps.

  Attributes:
    step_us: [steps] of the first process.
    losses: of the whole batch, before the first update and after the last.
  """

  step_us: list[float]
  losses: list[float]


def run(
  model: str,
  data: Mapping[str, np.ndarray],
  *,
  way: str,
  devices: str,
  memory_bytes: float,
  warmup: int,
  steps: int,
) -> Steps:
  """Times steps of a model.

  Args:
    model: its name in `run_measured.models_of(devices)`.
    data: "x0", "x1", ..., "y": the batch; "weight0", ...: the model's weights.
    way: one of `WAYS`.
    devices: "workers:N", "gpus" or "gpus:N".
    memory_bytes: memory of a logical GPU.
    warmup: steps that are not timed, after the first one.
    steps: timed steps.

  Raises:
    MeasurementError: a process failed, with the end of its messages.
  """
  kind, _, number = devices.partition(":")
  is_many = way == DISTRIBUTED and kind == "workers"
  count = int(number) if is_many else 1
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    file = pathlib.Path(folder) / "data.npz"
    np.savez(file, **data)
    ports = [stack.enter_context(host.reserved_port()) for _ in range(count)]
    addresses = [f"{host.LOOPBACK}:{port}" for port in ports]
    children = []
    for task in range(count):
      given = {
        "model": model,
        "file": str(file),
        "way": way,
        "devices": devices,
        "memory_bytes": memory_bytes,
        "warmup": warmup,
        "steps": steps,
        "task": task,
        "addresses": addresses if is_many else [],
      }
      children.append(_start(given))
      stack.callback(children[-1].kill)
    replies = [_reply(child, way) for child in children]
  losses = np.mean([reply["losses"] for reply in replies], axis=0)
  return Steps(replies[0]["step_us"], losses.tolist())


def _start(given: dict[str, Any]) -> subprocess.Popen[str]:
  env = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_GRPC_REUSE_PORT": "true",  # `run` holds the ports
    # As the processes that place have it: see docs/gpu_host.md.
    "TF_GPU_THREAD_MODE": os.environ.get("TF_GPU_THREAD_MODE", "gpu_private"),
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
  }
  if given["devices"].startswith("workers"):
    env["CUDA_VISIBLE_DEVICES"] = ""
  if given["addresses"]:
    task = {"type": "worker", "index": given["task"]}
    config = {"cluster": {"worker": given["addresses"]}, "task": task}
    env["TF_CONFIG"] = json.dumps(config)
  return subprocess.Popen(
    [sys.executable, "-m", __spec__.name, json.dumps(given)],
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _reply(child: subprocess.Popen[str], way: str) -> dict[str, Any]:
  try:
    said, errors = child.communicate(timeout=_TIMEOUT_S)
  except subprocess.TimeoutExpired as error:
    raise MeasurementError(f"{way}: no end within {_TIMEOUT_S:g} s") from error
  if child.returncode:
    raise MeasurementError(f"{way} failed: {' '.join(errors.split())[-600:]}")
  return json.loads(said.splitlines()[-1])


def main(given: dict[str, Any]) -> None:
  """Trains on this process's part of the batch, and prints a line of JSON."""
  import tensorflow as tf

  strategy = _strategy(given)
  from benchmarks.run_measured import models_of

  data = dict(np.load(given["file"]))
  with strategy.scope():
    model = models_of(given["devices"])[given["model"]].build()
    weights = [name for name in data if name.startswith("weight")]
    model.set_weights([data[f"weight{i}"] for i in range(len(weights))])
  rows = np.arange(len(data["y"]))
  mine = np.array_split(rows, max(1, len(given["addresses"])))[given["task"]]
  inputs = sorted(name for name in data if name.startswith("x"))
  x = [tf.constant(data[name][mine]) for name in inputs]
  y = tf.constant(data["y"][mine])
  print(json.dumps(_train(strategy, model, x, y, given)))


def _strategy(given: dict[str, Any]) -> Any:
  """Returns where the step runs, after settings of threads and devices."""
  import tensorflow as tf

  kind, _, number = given["devices"].partition(":")
  if kind == "workers":
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[given["task"] % len(cores)]})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if given["addresses"]:
      strategy = tf.distribute.MultiWorkerMirroredStrategy()
      port = int(given["addresses"][given["task"]].rpartition(":")[2])
      host.keep_on_loopback(port)
      return strategy
    return tf.distribute.OneDeviceStrategy("/cpu:0")
  gpus = tf.config.list_physical_devices("GPU")
  if number:
    mib = given["memory_bytes"] / 2**20
    logical = tf.config.LogicalDeviceConfiguration(memory_limit=mib)
    tf.config.set_logical_device_configuration(gpus[0], [logical] * int(number))
  if given["way"] == DISTRIBUTED:
    # NCCL refuses logical devices of one GPU.
    across = tf.distribute.ReductionToOneDevice() if number else None
    names = [d.name for d in tf.config.list_logical_devices("GPU")]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=across)
  return tf.distribute.OneDeviceStrategy("/gpu:0")


def _train(
  strategy: Any, model: Any, x: list[Any], y: Any, given: dict[str, Any]
) -> dict[str, Any]:
  import tensorflow as tf

  is_compiled = given["way"] == XLA
  replicas = strategy.num_replicas_in_sync if not given["addresses"] else 1
  parts = [tf.split(tensor, replicas) for tensor in (*x, y)]
  each = [
    strategy.experimental_distribute_values_from_function(
      lambda context, p=part: p[context.replica_id_in_sync_group % replicas]
    )
    for part in parts
  ]

  def train(*batch: Any) -> Any:
    return model.train_step((list(batch[:-1]), batch[-1]))

  inner = tf.function(train, jit_compile=True) if is_compiled else train

  @tf.function
  def step() -> Any:
    return strategy.run(inner, args=tuple(each))

  def loss() -> float:
    return float(tf.reduce_mean(model.loss(y, model(x, training=False))))

  losses, step_us = [loss()], []
  for i in range(1 + given["warmup"] + given["steps"]):
    began = time.perf_counter()
    found = step()
    for value in tf.nest.flatten(found, expand_composites=True):
      value.numpy()
    if i > given["warmup"]:
      step_us.append(1e6 * (time.perf_counter() - began))
  return {"losses": [*losses, loss()], "step_us": step_us}


if __name__ == "__main__":
  main(json.loads(sys.argv[1]))
