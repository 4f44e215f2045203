"""Simulated against real memory of steps that recompute, on this host's CPU.

Each step runs in a process of its own: a chain of residual blocks (matrix
product, GELU, matrix product) as it is, under `keras.RematScope`, and with
tfplace's `recompute`. `measured` is the rise of the resident memory over that
before the first step. With `--limit_mb`, the data of the process may grow by so
much at most, and a step that needs more fails. Writes JSON.

  python -m benchmarks.measured.run_recomputation_memory
"""

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

from absl import flags

from benchmarks.lib.command import Options
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_recomputation_memory", __doc__)
_BLOCKS = OPTIONS.add("blocks", 30, "Number of blocks.")
_UNITS = OPTIONS.add("units", 512, "Units of a block.")
_BATCH = OPTIONS.add("batch_size", 8192, "Examples of a step.")
_STEPS = OPTIONS.add("steps", 4, "Steps of each process.")
_LIMIT_MB = OPTIONS.add("limit_mb", 2000, "Limit of growth in MB; 0: none.")
_STEP = OPTIONS.add("step", "", "Step that this process runs; all by default.")
_OUT = OPTIONS.out("recomputation_memory.json")

# Name of a step -> what tfplace recomputes; Keras' scope recomputes each block.
STEPS = {
  "kept": "none",
  "keras.RematScope": "none",
  "recompute=['block_*']": ["block_*"],
  "recompute='all'": "all",
}
_REMAT = "keras.RematScope"
_MB = 1e6


def chain(blocks: int, units: int, scope: Any = None) -> Any:
  """Builds a compiled chain of residual blocks, inside a scope of Keras."""
  import keras

  class Block(keras.layers.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
      size = (shape[-1], shape[-1])
      small = keras.initializers.RandomNormal(stddev=0.01)
      self.first = self.add_weight(shape=size, name="first", initializer=small)
      self.last = self.add_weight(shape=size, name="last", initializer=small)

    def call(self, x: Any) -> Any:
      inner = keras.ops.gelu(keras.ops.matmul(x, self.first))
      return x + keras.ops.matmul(inner, self.last)

  keras.utils.set_random_seed(0)
  x = start = keras.Input((units,))
  with scope or contextlib.nullcontext():
    for i in range(blocks):
      x = Block(name=f"block_{i}")(x)
  model = keras.Model(start, keras.layers.Dense(1)(x))
  model.compile("sgd", "mse", jit_compile=False)
  return model


def built(step: str) -> Any:
  """Builds the model of a step, under `keras.RematScope` for that step."""
  import keras

  scope = keras.RematScope(mode="full") if step == _REMAT else None
  return chain(_BLOCKS.value, _UNITS.value, scope)


def run_step(step: str) -> dict[str, Any]:
  """Simulates and runs one step in this process."""
  import numpy as np

  import tfplace

  model, batch = built(step), _BATCH.value
  cpu = "/job:localhost/replica:0/task:0/device:CPU:0"
  cluster = tfplace.Cluster("host", (tfplace.Device(cpu, "CPU"),), ())
  recompute = STEPS[step]
  graph = tfplace.extract(model, cluster, batch_size=batch, recompute=recompute)
  simulated = tfplace.place(tfplace.Problem(graph, cluster), "single")
  if recompute != "none":
    tfplace.place_model(
      model,
      cluster,
      recompute=recompute,
      batch_size=batch,
      strategy="single",
      budget_s=1,
      costs="estimated",
      verbose=0,
    )
  x = np.full((batch, _UNITS.value), 0.5, np.float32)
  y = np.ones((batch, 1), np.float32)
  model.predict(x[:64], verbose=0, batch_size=64)
  pages = pathlib.Path("/proc/self/statm").read_text().split()
  before = int(pages[1]) * resource.getpagesize()
  if _LIMIT_MB.value:
    data = int(pages[5]) * resource.getpagesize()
    limit = data + int(_LIMIT_MB.value * _MB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
  seconds, loss = [], 0.0
  for _ in range(_STEPS.value):
    began = time.perf_counter()
    loss = float(model.train_on_batch(x, y))
    seconds.append(time.perf_counter() - began)
  highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  (peak,) = simulated.evaluation.peak_memory_bytes.values()
  return {
    "simulated_mb": peak / _MB,
    "measured_mb": (highest - before) / _MB,
    "simulated_s": simulated.evaluation.step_time_us / 1e6,
    "seconds": min(seconds[1:]),
    "loss": loss,
  }


def in_a_process(step: str, argv: list[str]) -> dict[str, Any]:
  """Runs one step in a child; says why where it fails."""
  command = [
    sys.executable,
    "-m",
    "benchmarks.measured.run_recomputation_memory",
    *argv,
    f"--step={step}",
  ]
  env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
  done = subprocess.run(
    command, capture_output=True, text=True, env=env, check=False
  )
  if done.returncode:
    return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1]}
  return json.loads(done.stdout.splitlines()[-1])


def main(_: flags.FlagValues) -> None:
  if _STEP.value:
    print(json.dumps(run_step(_STEP.value)))
    return
  argv = [
    f"--{flag.name}={flag.value}" for flag in (_BLOCKS, _UNITS, _BATCH, _STEPS)
  ]
  rows = []
  for limit in dict.fromkeys([0, _LIMIT_MB.value]):
    for step in STEPS:
      found = in_a_process(step, [*argv, f"--limit_mb={limit}"])
      rows.append({"step": step, "limit_mb": limit, **found})
      print(rows[-1], flush=True)
      write_json(_OUT.value, {"rows": rows})


if __name__ == "__main__":
  OPTIONS.run(main)
