"""Published training and inference steps, and their predictions.

`DEVELOPMENT` names the rows that choices may look at; all others are the
holdout. A row of several GPUs is predicted as one microbatch for each GPU:

- "parameters on the CPU": the variables, the sums of gradients and the
  optimizer are on the CPU;
- Horovod and NCCL: the variables are spread over the GPUs (`data_parallel`),
  which sends as many bytes as a ring;
- a pipeline: stages of layers (`pipeline`).
"""

import csv
import dataclasses
import math
import re
from typing import Any, NamedTuple

import keras
import numpy as np

from benchmarks.gpu import kernel_data, kernel_models
from tfplace import cost, placers
from tfplace.core import Problem
from tfplace.core.cluster import Cluster
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.op_graph import OpGraph
from tfplace.core.presets import cluster_preset
from tfplace.cost.kernels.model import KernelCosts
from tfplace.extraction import trace_keras
from tfplace.extraction.traced import TracedStep
from tfplace.simulate import Simulator

# Chosen before any prediction: models whose rows choices may look at.
DEVELOPMENT = (
  "inception_v3",
  "efficientnet_b0",
  "bert_large_pretraining_128",
)
DEVELOPMENT_GPU = {"transformer_xl_base": "v100"}
_PRESETS = {"a100-sxm-40gb": "a100", "a100-pcie-80gb": "a100-pcie"}
# Sequences between two updates, by sequence length, in the programs measured
# (LAMB on 64 k and 32 k sequences, NVIDIA DeepLearningExamples).
_ACCUMULATED = {"128": 65536, "512": 32768}


class StepKey(NamedTuple):
  """Key of a traced step.

  Attributes:
    model: name of the data.
    batch: examples on all GPUs.
    microbatches: one for each GPU; 1 for a pipeline.
    policy: Keras' dtype policy.
    mode: "train" or "inference".
  """

  model: str
  batch: int
  microbatches: int
  policy: str
  mode: str


@dataclasses.dataclass(frozen=True)
class Row:
  """A published row.

  Attributes:
    model: name of the data.
    mode: "train" or "inference".
    gpu: name of the data.
    gpus: number of GPUs.
    batch: examples on each GPU.
    precision: "fp32", "tf32" or "mixed".
    xla: whether XLA compiled the step.
    step_ms: published time of one step.
    note: how the program ran.
  """

  model: str
  mode: str
  gpu: str
  gpus: int
  batch: int
  precision: str
  xla: bool
  step_ms: float
  note: str

  @property
  def is_development(self) -> bool:
    return (
      self.model in DEVELOPMENT or DEVELOPMENT_GPU.get(self.model) == self.gpu
    )

  @property
  def is_pipeline(self) -> bool:
    return self.note.startswith("pipeline")

  @property
  def global_batch(self) -> int:
    # The note of the pipeline gives the batch of all stages.
    return 4 if self.is_pipeline else self.batch * self.gpus

  @property
  def step_key(self) -> StepKey:
    return StepKey(
      self.model,
      self.global_batch,
      1 if self.is_pipeline else self.gpus,
      "mixed_float16" if self.precision == "mixed" else "float32",
      self.mode,
    )

  @property
  def key(self) -> tuple[Any, ...]:
    """Identity of the row."""
    kind = "pipeline" if self.is_pipeline else "data parallel"
    return (*self.on_one[:3], self.gpus, self.batch, self.precision, kind)

  @property
  def is_weak_scaling(self) -> bool:
    """True if the batch grows with the number of GPUs."""
    return "strong scaling" not in self.note

  @property
  def on_one(self) -> tuple[Any, ...]:
    """Key of the row of one GPU that this one is scaled from."""
    batch = self.batch if self.is_weak_scaling else self.global_batch
    return self.model, self.mode, self.gpu, batch, self.precision

  @property
  def steps_per_update(self) -> int:
    """Micro-steps of gradient accumulation between two updates."""
    length = re.fullmatch(r"bert_large_pretraining_(\d+)", self.model)
    if length is None:
      return 1
    return max(1, round(_ACCUMULATED[length[1]] / self.global_batch))


def read(path: str) -> list[Row]:
  """Reads the rows of gpu_steps.csv."""
  with open(path, encoding="utf-8") as file:
    return [
      Row(
        each["model"],
        each["mode"],
        each["gpu"],
        int(each["gpus"]),
        int(each["batch_per_gpu"]),
        each["precision"],
        each["xla"] == "1",
        float(each["step_ms"]),
        each["note"],
      )
      for each in csv.DictReader(file)
    ]


def cluster_of(gpu: str, count: int = 1) -> Cluster:
  """GPUs and their host, memory unlimited: the row says that it fits."""
  cluster = cluster_preset(f"{_PRESETS.get(gpu, gpu)}x{count}")
  devices = [
    dataclasses.replace(device, memory_bytes=math.inf)
    for device in cluster.devices
  ]
  if gpu == "a100-pcie-80gb":
    hardware = {**devices[0].extra["hardware"]}
    found = kernel_data.HARDWARE[gpu]
    hardware["bandwidth"] = int(found.bandwidth_bytes_per_us * 1e3)
    hardware["power_watts"] = found.power_watts
    devices[:count] = [
      dataclasses.replace(device, extra={"hardware": hardware})
      for device in devices[:count]
    ]
  return dataclasses.replace(cluster, devices=tuple(devices))


def traced(key: StepKey, fused: bool) -> TracedStep:
  """The step of a model, with fused normalization or with Keras' own."""
  keras.mixed_precision.set_global_policy(key.policy)
  model, sample = kernel_models.build(key.model, key.batch, fused)
  return trace_keras(
    model,
    key.batch,
    sample=sample,
    kind="train" if key.mode == "train" else "predict",
    microbatches=MicrobatchConfig(
      key.microbatches, allow_batch_statistics=True
    ),
  )


def predicted(
  key: StepKey, rows: list[Row], fused: bool, costs: str
) -> list[dict[str, Any]]:
  """Predictions of the rows of one step, which is traced once."""
  step = traced(key, fused)
  return [_predicted_on(step, row, costs) for row in rows]


def _predicted_on(step: TracedStep, row: Row, costs: str) -> dict[str, Any]:
  """Step time on the GPUs of the row, with what it consists of."""
  cluster = cluster_of(row.gpu, row.gpus)
  model: Any = costs
  if costs == "kernels":
    model = KernelCosts(tensor_float_32=row.precision != "fp32")
  graph = _prefetched(cost.op_graph(step, cluster, cost_model=model))
  problem = Problem(graph, cluster)
  evaluation = Simulator(problem).evaluate(_placement(problem, row)[None])[0]
  busy = np.nan_to_num(graph.time_us["GPU"])
  by_type: dict[str, float] = {}
  for kind, time_us in zip(graph.types, busy, strict=True):
    by_type[kind] = by_type.get(kind, 0.0) + float(time_us) / 1e3
  top = sorted(by_type.items(), key=lambda pair: -pair[1])[:8]
  return {
    "predicted_ms": evaluation.step_time_us / 1e3,
    "kernels": int((busy > 0).sum()),
    "kernels_ms": float(busy.sum()) / 1e3,
    "sent_mb": evaluation.bytes_moved / 1e6,
    "top_ms": {kind: round(ms, 2) for kind, ms in top},
  }


def _prefetched(graph: OpGraph) -> OpGraph:
  """The graph with the batch on every GPU before the step, as measured."""
  of_op = np.array([kind == "Placeholder" for kind in graph.types])
  is_input = np.repeat(of_op, np.diff(graph.output_offsets))
  output_bytes = np.where(is_input, 0.0, graph.output_bytes)
  return dataclasses.replace(graph, output_bytes=output_bytes)


def _placement(problem: Problem, row: Row) -> np.ndarray:
  """[num_ops] devices of the program that was measured."""
  only_cpu = np.isnan(problem.graph.time_us["GPU"])
  if row.gpus == 1:
    return np.where(only_cpu, 1, 0)
  strategy = "pipeline" if row.is_pipeline else "data_parallel"
  result = placers.place(problem, strategy, budget_s=600)
  devices = np.array(result.placement.devices)
  if not row.note.startswith("parameters on the CPU"):
    return devices
  on_cpu = ~np.isnan(problem.graph.time_us["CPU"])
  on_cpu &= problem.graph.microbatch < 0
  # Ops that are colocated with one that cannot move stay.
  stays = np.unique(problem.group_of[~on_cpu])
  on_cpu &= ~np.isin(problem.group_of, stays)
  devices[on_cpu] = row.gpus
  return devices
