"""Predicted beside published times of whole steps.

Reads the published rows of `--data` (not part of the project), traces each
model, costs it with kernel costs, and simulates the step on the GPUs of the
row. Where XLA compiled the step, it is fused into units. Of rows on several
GPUs the time over that on one GPU is compared, too.
`DEVELOPMENT` names the rows that choices may look at; all others are the
holdout. A row of several GPUs is predicted as one microbatch for each GPU:

- "parameters on the CPU": the variables, the sums of gradients and the
  optimizer are on the CPU;
- Horovod and NCCL: the variables are spread over the GPUs (`data_parallel`),
  which sends as many bytes as a ring;
- a pipeline: stages of layers (`pipeline`).

  python -m benchmarks.run_published_steps --data=gpu_steps.csv
"""

import csv
import dataclasses
import itertools
import math
import multiprocessing
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks import kernel_data, lib
from benchmarks.lib import Options
from tfplace import placers
from tfplace.bin import cli
from tfplace.graph import Problem
from tfplace.graph.cluster import Cluster
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.op_graph import OpGraph
from tfplace.hardware.presets import cluster_preset
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

OPTIONS = Options("run_published_steps", __doc__)
OPTIONS.add("data", None, "gpu_steps.csv of published steps.")
OPTIONS.add("models", [], "Models; all where left out.")
OPTIONS.add("most_gpus", 8, "Most GPUs of a row.", least=1)
OPTIONS.add("out", str(lib.RESULTS / "published_steps.json"), "JSON file.")

# Chosen before any prediction: models whose rows choices may look at.
DEVELOPMENT = ("inception_v3", "efficientnet_b0", "bert_large_pretraining_128")
DEVELOPMENT_GPU = {"transformer_xl_base": "v100"}
# A known issue of its README: "CPU-bound Auto-augmentation" in mixed precision.
_INPUT_BOUND = ("efficientnet_b0", "v100", "mixed")
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
    xla: whether XLA compiled the step.
  """

  model: str
  batch: int
  microbatches: int
  policy: str
  mode: str
  xla: bool


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
  def is_input_bound(self) -> bool:
    """True if the program waited for the CPUs that prepare its images."""
    return (self.model, self.gpu, self.precision) == _INPUT_BOUND

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
      self.xla,
    )

  @property
  def label(self) -> str:
    """Identity of the row."""
    key = (*self.on_one[:3], self.gpus, self.batch, self.precision)
    kind = "/pipeline" if self.is_pipeline else ""
    return "/".join(map(str, key)) + kind

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


def traced(key: StepKey) -> "TracedStep":
  """The step of a model."""
  import keras

  from benchmarks import models
  from tfplace.variants.keras_step import trace_keras

  keras.mixed_precision.set_global_policy(key.policy)
  model, sample = models.published_model(key.model, key.batch, not key.xla)
  return trace_keras(
    model,
    key.batch,
    sample=sample,
    kind="train" if key.mode == "train" else "predict",
    microbatches=VariantConfig(key.microbatches, allow_batch_statistics=True),
  )


def predicted(key: StepKey, rows: list[Row]) -> list[dict[str, Any]]:
  """Predictions of the rows of one step, which is traced once."""
  step = traced(key)
  return [_predicted_on(step, row) for row in rows]


def _predicted_on(step: "TracedStep", row: Row) -> dict[str, Any]:
  """Step time on the GPUs of the row, with what it consists of."""
  from tfplace import cost
  from tfplace.cost import uncertainty
  from tfplace.cost.kernels.model import KernelCosts

  cluster = cluster_of(row.gpu, row.gpus)
  model = KernelCosts(tensor_float_32=row.precision != "fp32")
  graph = cost.op_graph(step, cluster, cost_model=model, compile_units=row.xla)
  graph = _prefetched(graph)
  problem = Problem(graph, cluster)
  devices = _placement(problem, row)[None]
  evaluation = Simulator(problem).evaluate(devices)[0]
  samples = uncertainty.sampled_step_us(problem, devices)
  low, high = np.percentile(samples, uncertainty.INTERVAL).tolist()
  busy = np.nan_to_num(graph.time_us["GPU"])
  return {
    "predicted_ms": evaluation.step_time_us / 1e3,
    "interval_ms": [low / 1e3, high / 1e3],
    "kernels": int((busy > 0).sum()),
    "kernels_ms": float(busy.sum()) / 1e3,
    "sent_mb": evaluation.bytes_moved / 1e6,
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


def predictions(values: flags.FlagValues, rows: list[Row]) -> lib.Rows:
  """One saved row per published row; a process for each traced step."""
  saved = lib.Rows(values.out, {}, policy=None)
  by_step = sorted(
    (row for row in rows if row.label not in saved.rows),
    key=lambda row: row.step_key,
  )
  for key, each in itertools.groupby(by_step, lambda row: row.step_key):
    print(*key, file=sys.stderr, flush=True)
    group = [*each]
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
      try:
        found = process.submit(predicted, key, group).result()
      except futures.process.BrokenProcessPool:
        print("  killed: not enough memory", file=sys.stderr, flush=True)
        continue
    for row, prediction in zip(group, found, strict=True):
      saved.put(row.label, {**dataclasses.asdict(row), **prediction})
  return saved


def compared(found: Mapping[str, dict]) -> list[dict[str, Any]]:
  """Returns rows with the ratio of predicted to published time.

  Rows of several GPUs have the ratio of the times over one GPU, too; an update
  after several micro-steps counts with its share.
  """
  names = [field.name for field in dataclasses.fields(Row)]
  rows = [(Row(**{n: r[n] for n in names}), r) for r in found.values()]
  alone = {row.on_one: (row, r) for row, r in rows if row.gpus == 1}
  result = []
  for row, r in rows:
    step_ms, scaling = r["predicted_ms"], None
    if row.gpus > 1 and row.on_one in alone:
      one, predicted_one = alone[row.on_one]
      one_ms = predicted_one["predicted_ms"]
      if row.is_weak_scaling:
        step_ms = one_ms + (step_ms - one_ms) / row.steps_per_update
      scaling = (step_ms / one_ms) / (row.step_ms / one.step_ms)
    low, high = r["interval_ms"]
    result.append(
      {
        "row": row,
        "ratio": step_ms / row.step_ms,
        "over": scaling,
        "holds": low <= row.step_ms <= high,
      }
    )
  return result


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns the errors of each part of the rows, development and holdout."""

  def is_one(row: Row) -> bool:
    return row.gpus == 1 and row.mode == "train"

  parts: dict[str, Callable[[Row], bool]] = {
    "one GPU, without XLA": lambda row: is_one(row) and not row.xla,
    "one GPU, with XLA": lambda row: is_one(row) and row.xla,
    "one GPU, TF32 and mixed": lambda row: (
      is_one(row) and row.precision != "fp32"
    ),
    "inference": lambda row: row.mode == "inference",
    "several GPUs": lambda row: row.gpus > 1,
    "several GPUs, time over one": lambda row: row.gpus > 1,
    "one GPU, 80% interval held": is_one,
  }
  lines = []
  for name, is_in in parts.items():
    cells = [name]
    for is_development in (True, False):
      of_part = [
        r
        for r in compared(found["rows"])
        if is_in(r["row"])
        and not r["row"].is_input_bound
        and r["row"].is_development == is_development
      ]
      if name.endswith("held"):
        cells.append(f"{sum(r['holds'] for r in of_part)} of {len(of_part)}")
      else:
        key = "over" if name.endswith("over one") else "ratio"
        cells.append(_errors([r[key] for r in of_part if r[key]]))
    if {*cells[1:]} != {"-"}:
      lines.append(cells)
  heads = ("rows", "development", "holdout")
  text = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  return {"published_steps": text}


def _errors(ratios: Sequence[float]) -> str:
  if not ratios:
    return "-"
  logs = [abs(math.log(ratio)) for ratio in ratios]
  worst = math.exp(max(logs))
  return f"{np.median(logs):.3f}, {worst:.2f} ({len(logs)})"


def main(values: flags.FlagValues) -> None:
  rows = [
    row
    for row in read(cli.required(values, "data"))
    if row.gpus <= values.most_gpus
    and (not values.models or row.model in values.models)
  ]
  saved = predictions(values, rows)
  for row in compared(saved.rows):
    print(f"{row['row'].label}: {row['ratio']:.2f}")
  print(tables(saved.found)["published_steps"])


if __name__ == "__main__":
  OPTIONS.run(main)
