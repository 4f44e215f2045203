"""Simulated against real memory of a worker whose activations wait elsewhere.

The chain of blocks of `run_recomputation_memory` runs on the first of two local
workers, and none, half or all of its activations wait on the second one, which
stands for a host. `measured` is the highest resident memory of the first worker
over that before the step. It includes what TensorFlow itself needs, which is
the same in all rows. Each row is the first step of new processes, because the
allocator keeps what gRPC's buffers fragment. Writes JSON.

  python -m benchmarks.measured.run_offload_memory
"""

import pathlib
import re
from typing import Any

from absl import flags

from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_offload_memory", __doc__)
_BLOCKS = OPTIONS.add("blocks", 12, "Number of blocks.")
_UNITS = OPTIONS.add("units", 1024, "Units of a block.")
_BATCH = OPTIONS.add("batch_size", 8192, "Examples of a step.")
_OUT = OPTIONS.out("offload_memory.json")

_MB = 1e6


def resident_mb(pid: int, field: str) -> float:
  """Returns a line of a process's status: VmRSS, or VmHWM for its highest."""
  text = pathlib.Path(f"/proc/{pid}/status").read_text()
  found = re.search(rf"{field}:\s+(\d+) kB", text)
  if found is None:
    raise ValueError(f"process {pid} has no {field}")
  return int(found[1]) * 1024 / _MB


def run_placement(traced: Any, share: float) -> dict[str, Any]:
  """Runs one step with a share of its activations on the second worker."""
  import numpy as np
  from tfplace.placers.offload import offload_ops

  from tfplace import Problem, measure
  from tfplace.plan import sources
  from tfplace.simulate import Simulator

  with measure.open_cluster("workers:2") as live:
    graph = sources.op_graph(traced, live.cluster)
    problem = Problem(graph, live.cluster)
    devices = np.zeros((1, graph.num_ops), np.int32)
    ops = offload_ops(problem)
    waiting = ops[: round(share * len(ops))]
    devices[0, waiting] = 1
    (simulated,) = Simulator(problem).evaluate(devices)
    harness = live.harness(problem, traced, steps=1, warmup=0, traced_steps=0)
    pid = live.runtime.pids[0]
    before = resident_mb(pid, "VmRSS")
    harness.evaluate(devices)
    highest = resident_mb(pid, "VmHWM")
  peaks = list(simulated.peak_memory_bytes.values())
  return {
    "activations": len(waiting),
    "waiting_mb": float(graph.op_output_bytes[waiting].sum()) / _MB,
    "simulated_mb": peaks[0] / _MB,
    "measured_mb": highest - before,
  }


def main(_: flags.FlagValues) -> None:
  cli.load_tensorflow()
  from tfplace.core.offload import offload_config

  from benchmarks.measured import run_recomputation_memory as memory
  from tfplace.core.microbatches import MicrobatchConfig
  from tfplace.extraction import trace_keras

  model = memory.chain(_BLOCKS.value, _UNITS.value)
  config = MicrobatchConfig(offload=offload_config("all"))
  traced = trace_keras(model, _BATCH.value, microbatches=config)
  rows = []
  for share in (0.0, 0.5, 1.0):
    rows.append({"share": share, **run_placement(traced, share)})
    print(rows[-1], flush=True)
    write_json(_OUT.value, {"rows": rows})


if __name__ == "__main__":
  OPTIONS.run(main)
