"""Predicted beside measured times of published plans: replicas by stages.

Reads the folder `--data` (not part of the project), builds the step that each
program ran as a graph, and simulates it on the links of a preset:

- GPT on 16 T4 in four hosts (AMP, NeurIPS 2022), with measured forward times;
- GPT-Neo on GH200 nodes (Sailor, SOSP 2025), with measured times of all passes;
  a node, tensor parallel, is one device;
- ResNet-101 on one to eight P40 (torchgpipe), with kernel costs: speedups.

Regret is the measured time of the plan that was predicted to be the fastest
over that of the plan that is, among plans of the same work on the same GPUs.

  python -m benchmarks.run_plans --data=plans
"""

import csv
import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.graph import Cluster, Link, OpSpec, Problem, build_graph
from tfplace.graph.op_graph import CONTROL_OUTPUT
from tfplace.graph.order import RANK
from tfplace.hardware.hardware import GPUS
from tfplace.hardware.presets import cluster_preset
from tfplace.simulate import Simulator

OPTIONS = Options("run_plans", __doc__)
OPTIONS.add("data", None, "Folder of measured plans.")
OPTIONS.add("sets", ["amp", "sailor", "torchgpipe"], "Sets of plans.")
OPTIONS.add("out", str(lib.RESULTS / "plans.json"), "JSON file.")

# AMP: weights and activations have 2 bytes, gradients 4; Adam moves 30 bytes
# for a parameter.
_BATCH, _WIDTH, _LENGTH, _VOCABULARY = 32, 1024, 1024, 52256
_UNLIMITED = 1e9  # bytes/us

Rows = Mapping[str, list[dict[str, str]]]  # file without .csv -> its rows


@dataclasses.dataclass(frozen=True)
class Plan:
  """A measured plan, and the step that its program runs.

  Attributes:
    name: identity of the plan.
    rivals: shared by plans of the same work on the same GPUs.
    measured_s: measured time of a step, or of one of its examples.
    cluster: devices and links.
    grid: [replicas, stages] devices.
    count: microbatches of each replica.
    us: [3, stages] forward and backward pass of a microbatch, and update.
    sent_bytes: [stages - 1] of a microbatch across each border.
    gradient_bytes: [stages] that replicas reduce.
    planned_s: what the publication's own planner predicted, if it has one.
    recomputes: whether all but the last microbatch run forward twice.
    examples: of a step where times are of one example, otherwise 1.
  """

  name: str
  rivals: str
  measured_s: float
  cluster: Cluster
  grid: np.ndarray
  count: int
  us: np.ndarray
  sent_bytes: Sequence[float]
  gradient_bytes: Sequence[float]
  planned_s: float | None = None
  recomputes: bool = False
  examples: int = 1


def predicted_s(plan: Plan) -> float:
  """Simulates a plan; a stage is one op for each pass of a microbatch.

  Replicas reduce the gradients of a stage in a ring: the part of each replica
  is added up from device to device, and its sum is passed on in the same way
  (reduce-scatter and all-gather of NCCL).
  """
  ops: list[OpSpec] = []
  devices: list[int] = []
  edges: list[tuple[int, int, int]] = []

  def add(replica, stage, inputs, us=0.0, outputs=(), microbatch=None) -> int:
    name, times = f"op_{len(ops)}", {"GPU": float(us)}
    edges.extend((*source, len(ops)) for source in inputs)
    ops.append(OpSpec(name, "Op", times, outputs, microbatch=microbatch))
    devices.append(int(plan.grid[replica, stage]))
    return len(ops) - 1

  (replicas, stages), sent = plan.grid.shape, [0.0, *plan.sent_bytes, 0.0]
  parts = np.outer(plan.gradient_bytes, np.ones(replicas)) / replicas
  own = np.zeros((stages, replicas), int)  # ops with a replica's gradients
  for replica in range(replicas):
    backward: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
    for i in range(plan.count):
      number, forward = replica * plan.count + i, []
      for s, us in enumerate(plan.us[0]):
        inputs = [(forward[-1], 0)] if s else []
        forward.append(add(replica, s, inputs, us, [sent[s + 1]], number))
      for s in reversed(range(stages)):
        inputs = [(forward[s], CONTROL_OUTPUT)]
        inputs += [(backward[s + 1][-1][0], 0)] if s < stages - 1 else []
        again = plan.recomputes and i < plan.count - 1
        us = plan.us[1, s] + again * plan.us[0, s]
        op = add(replica, s, inputs, us, [sent[s]], number)
        backward[s].append((op, CONTROL_OUTPUT))
    for s in range(stages):
      own[s, replica] = add(replica, s, backward[s], 0.0, parts[s])
  for s in range(stages):
    sums: list[list[tuple[int, int]]] = [[] for _ in range(replicas)]
    for part in range(replicas):
      source = (int(own[s, (part + 1) % replicas]), part)
      for step in range(2, 2 * replicas):
        at = (part + step) % replicas
        inputs = [source]
        inputs += [(int(own[s, at]), part)] if step <= replicas else []
        source = (add(at, s, inputs, 0.0, parts[s, :1]), 0)
        sums[at] += [source] if step >= replicas else []
    for replica in range(replicas):
      inputs = sums[replica] or [(int(own[s, 0]), 0)]
      add(replica, s, inputs, plan.us[2, s])
  graph = build_graph(plan.name, ops, edges)
  problem = Problem(graph, plan.cluster).in_order(RANK)
  found = Simulator(problem).run(np.array(devices, np.int32))
  return float(found.step_time_us[0]) / 1e6 / plan.examples


def read(folder: str) -> Rows:
  """Reads all files of the folder."""
  return {
    path.stem: [*csv.DictReader(path.read_text("utf-8").splitlines())]
    for path in pathlib.Path(folder).glob("*.csv")
  }


def amp_plans(rows: Rows) -> Iterator[Plan]:
  """GPT on T4s; of a model-parallel plan, `mp` GPUs are one device."""
  for row in rows.get("amp_trials", ()):
    mp, dp, pp, micro = (int(row[name]) for name in ("mp", "dp", "pp", "micro"))
    cuts = [*map(int, row["cuts"].split())]
    key = {"profile": "gpt2_G4", "mp": row["mp"]}
    layers = [r for r in rows["amp_layers"] if key.items() <= r.items()]
    is_known = row["experiment"] == "homogeneous" and len(layers) > 0
    if not is_known or not math.isfinite(float(row["real_s"])):
      continue  # Other hosts, or a plan that failed.
    seconds = [float(each["fwd_s_per_example"]) for each in layers]
    us = 1e6 * micro * _sums(seconds, cuts)
    # An embedding, a small layer, the blocks, two small ones, logits, a loss.
    parameters = np.zeros(len(layers))
    parameters[2:-4] = 12 * _WIDTH * _WIDTH
    parameters[-2] = _VOCABULARY * _WIDTH
    parameters[0] = parameters[-2] if pp > 1 else 0  # They share one.
    of_stage = _sums(parameters, cuts)
    memory_bytes_per_us = GPUS["t4"].hardware["bandwidth"] / 1e3
    cluster, grid = _deepspeed(f"4*t4x{4 // mp}", dp, pp)
    yield Plan(
      name=f"amp/{mp}x{dp}x{pp}/{micro}",
      rivals="amp",
      measured_s=float(row["real_s"]),
      cluster=cluster,
      grid=grid,
      count=_BATCH // dp // micro,
      us=np.stack([us, 2 * us, 30 * of_stage / mp / memory_bytes_per_us]),
      sent_bytes=[2.0 * micro * _LENGTH * _WIDTH] * (pp - 1),
      gradient_bytes=4 * of_stage,
      planned_s=float(row["amp_s"]),
    )


def sailor_plans(rows: Rows) -> Iterator[Plan]:
  """Models in float32 on GH200 nodes; each GPU has an adapter.

  The GPUs of a node send equal parts of a message.
  """
  for row in rows.get("sailor_plans", ()):
    dp, pp, micro = (int(row[name]) for name in ("dp", "stages", "micro"))
    nodes = re.split(r"[ |]", row["gpus"])
    cuts = [*map(int, row["cuts"].split())]
    gpu, tp = nodes[0].split(":")
    key = {"model": row["model"], "gpu": gpu, "tp": tp, "micro": row["micro"]}
    layers = [r for r in rows["sailor_layers"] if key.items() <= r.items()]
    if row["drop"] == "1" or {*nodes} != {f"GH-96:{tp}"} or not layers:
      continue
    preset = f"{len(nodes)}*gh200x1"
    cluster, grid = _deepspeed(preset, dp, pp, adapters=int(tp))
    columns = ("fwd_s", "bwd_s", "update_s", "params")
    table = [[float(r[column]) for r in layers] for column in columns]
    *seconds, parameters = _sums(table, cuts)
    sent = [float(layers[cut - 1]["act_floats"]) for cut in cuts[1:-1]]
    yield Plan(
      name=f"sailor/{row['plan']}",
      rivals=f"sailor/{row['model']}/{len(nodes)}/{row['batch']}",
      measured_s=float(row["real_s"]),
      cluster=cluster,
      grid=grid,
      count=int(row["batch"]) // dp // micro,
      us=1e6 * np.array(seconds),
      sent_bytes=[4.0 * micro * floats for floats in sent],
      gradient_bytes=4 * parameters,
    )


def _sums(of_layers: Any, cuts: Sequence[int]) -> np.ndarray:
  """Sums [..., layers] over the layers of each stage."""
  return np.add.reduceat(np.array(of_layers), cuts[:-1], axis=-1)


def _deepspeed(
  preset: str, dp: int, pp: int, adapters: int = 1
) -> tuple[Cluster, np.ndarray]:
  """Returns devices of a network, and the [replicas, stages] that run a plan.

  Consecutive devices are replicas of a stage. A message between stages keeps
  both busy: NCCL's send and receive are on the stream that computes
  (deepspeed/runtime/pipe/p2p.py). `adapters` of a device share a message.
  """
  cluster = cluster_preset(preset)
  gpus = [i for i, device in enumerate(cluster.devices) if not device.is_cpu]
  stage_of = {cluster.devices[gpu].name: i // dp for i, gpu in enumerate(gpus)}
  host_of = dict(zip(cluster.index, cluster.hosts, strict=True))
  links = []
  for link in cluster.links:
    is_near = host_of[link.src] == host_of[link.dst]
    rate = link.bandwidth_bytes_per_us * (1 if is_near else adapters)
    us, ends = link.latency_us, (link.src, link.dst)
    if stage_of.get(link.src) == stage_of.get(link.dst):
      links.append(dataclasses.replace(link, bandwidth_bytes_per_us=rate))
    else:
      costs = (us, 1 / rate, us, 1 / rate)
      links.append(Link(*ends, _UNLIMITED, 0, 0, None, *costs))
  grid = np.array(gpus).reshape(pp, dp).T
  return dataclasses.replace(cluster, links=tuple(links)), grid


def torchgpipe_plans(rows: Rows) -> Iterator[Plan]:
  """ResNet-101 on P40s, per example; copies are on streams of their own."""
  from benchmarks.models import resnet101_modules
  from tfplace import cost
  from tfplace.variants.keras_step import trace_keras

  model, cut_bytes = resnet101_modules()
  for row in rows.get("torchgpipe", ()):
    if row["model"] != "resnet101":
      continue
    balance = [*map(int, row["balance"].split())]
    cuts = [0, *itertools.accumulate(balance)]
    micro = -(-int(row["batch"]) // int(row["chunks"]))
    cluster = cluster_preset(f"p40x{len(balance)}")
    graph = cost.op_graph(trace_keras(model, micro), cluster)
    us = np.nan_to_num(graph.time_us["GPU"])
    us[us > 0] += cluster.op_overhead_us[0]
    passes = np.zeros((3, cuts[-1]))
    for name, layer, op_us in zip(graph.names, graph.layer, us, strict=True):
      module = re.search(r"module_(\d+)", graph.layer_names[layer])
      if layer >= 0 and module:
        is_update, is_forward = name.startswith("sgd/"), name.startswith("func")
        passes[2 * is_update or 1 - is_forward, int(module[1])] += op_us
    yield Plan(
      name=f"torchgpipe/{row['experiment']}",
      rivals=row["experiment"],
      measured_s=1 / float(row["per_s"]),
      cluster=cluster,
      grid=np.arange(len(balance))[np.newaxis],
      count=int(row["chunks"]),
      us=_sums(passes, cuts),
      sent_bytes=micro * cut_bytes[cuts[1:-1]],
      gradient_bytes=np.zeros(len(balance)),
      recomputes=row["checkpoint"] != "never",
      examples=int(row["batch"]),
    )


SETS = {
  "amp": ("GPT, 16 T4 (AMP)", amp_plans),
  "sailor": ("GPT-Neo, GH200 nodes (Sailor)", sailor_plans),
  "torchgpipe": ("ResNet-101, 1 to 8 P40, speedups", torchgpipe_plans),
}


def regret(rows: Sequence[dict], score: Callable[[dict], float]) -> float:
  """Measured time of the plan of least score over that of the fastest.

  The geometric mean over all sets of rivals; NaN without rivals or scores.
  """
  groups: dict[str, list[dict]] = {}
  for row in rows:
    if not math.isnan(score(row)):
      groups.setdefault(row["rivals"], []).append(row)
  return lib.geometric_mean(
    min(group, key=score)["measured_s"] / min(r["measured_s"] for r in group)
    for group in groups.values()
    if len(group) > 1
  )


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns errors, rank correlation and regret of each set."""
  scores: dict[str, Callable[[dict], float]] = {
    "regret": lambda row: row["predicted_s"],
    "of data parallelism": lambda row: -row["replicas"],
    "of its own planner": lambda row: row["planned_s"] or math.nan,
  }
  lines = []
  for name in dict.fromkeys(row["set"] for row in found["rows"].values()):
    rows = [row for row in found["rows"].values() if row["set"] == name]
    logs = np.array([abs(math.log(row["ratio"])) for row in rows])
    seconds = np.array([[r["predicted_s"], r["measured_s"]] for r in rows])
    correlation = np.corrcoef(seconds.argsort(0).argsort(0).T)[0, 1]
    known = correlation, *(regret(rows, score) for score in scores.values())
    cells = ["-" if math.isnan(one) else f"{one:.3f}" for one in known]
    error = f"{np.median(logs):.3f}, {np.exp(logs.max()):.2f}"
    lines.append([SETS[name][0], len(rows), error, *cells])
  heads = ("plans", "number", "error", "rank correlation", *scores)
  return {"plans": f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"}


def main(values: flags.FlagValues) -> None:
  lib.check_names("sets", values.sets, SETS)
  rows = read(cli.required(values, "data"))
  saved = lib.Rows(values.out, {}, policy=None)
  for name in values.sets:
    first = 1.0
    for plan in SETS[name][1](rows):
      seconds = predicted_s(plan)
      ratio = seconds / plan.measured_s / first
      if plan.examples > 1 and first == 1.0:  # All are speedups over this one.
        first, ratio = ratio, 1.0
      about = ("rivals", "measured_s", "planned_s")
      row = {key: getattr(plan, key) for key in about}
      row |= {"set": name, "replicas": len(plan.grid)}
      saved.put(plan.name, {**row, "predicted_s": seconds, "ratio": ratio})
      print(f"{plan.name}: predicted over measured {ratio:.3f}")
  print(tables(saved.found)["plans"])


if __name__ == "__main__":
  OPTIONS.run(main)
