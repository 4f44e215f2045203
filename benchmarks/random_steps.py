"""Random training steps, without layers or axes, for `sets.py`."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph

_TYPES = ("MatMul", "Conv2D", "Relu", "AddV2", "Softmax", "Mul", "BiasAdd")


def training_step(seed: int) -> OpGraph:
  """Generates a random training step of 30 to 1,000 ops.

  Each layer has one to six parallel branches. The forward op of a branch reads
  one or two ops of the previous layer and usually has a variable. The backward
  pass mirrors the forward pass and reads its outputs. A variable shares a
  colocation group with its update. An op takes 10 to 20 times longer on a CPU.
  """
  rng = np.random.default_rng(seed)
  maker = _Maker(rng)
  branches = int(rng.integers(1, 7))
  last = [maker.op("input", "IteratorGetNext", 0.0, ())]
  for layer in range(int(rng.integers(6, 40))):
    width = int(rng.integers(1, branches + 1))
    last = [maker.forward(f"l{layer}/{i}", last) for i in range(width)]
  gradient = {op: maker.op(f"loss_{op}", "Sum", 1.0, last) for op in last}
  for op in reversed(maker.forwards):
    maker.backward(op, gradient)
  return build_graph(f"synthetic{seed}", maker.ops, maker.edges)


class _Maker:
  def __init__(self, rng: np.random.Generator) -> None:
    self._rng = rng
    self._typical_us = float(10 ** rng.uniform(0.5, 3))
    self._typical_bytes = float(10 ** rng.uniform(4, 7.5))
    self.ops: list[OpSpec] = []
    self.edges: list[tuple[int, int, int]] = []
    self.forwards: list[int] = []
    self._inputs: dict[int, list[int]] = {}
    self._variable: dict[int, int] = {}

  def op(
    self,
    name: str,
    kind: str,
    time_us: float,
    inputs: Sequence[int],
    persistent: float = 0.0,
    colocation: str | None = None,
  ) -> int:
    number = len(self.ops)
    size = self._typical_bytes * float(self._rng.lognormal(0, 1))
    slower = float(self._rng.uniform(10, 20))
    times = {"GPU": time_us, "CPU": time_us * slower}
    sizes = [float(int(size))]
    self.ops.append(
      OpSpec(name, kind, times, sizes, persistent, colocation=colocation)
    )
    self.edges += [(i, 0, number) for i in sorted(set(inputs))]
    return number

  def forward(self, name: str, layer: list[int]) -> int:
    rng = self._rng
    count = min(len(layer), int(rng.integers(1, 3)))
    inputs = [int(i) for i in rng.choice(layer, count, replace=False)]
    reads = list(inputs)
    if rng.random() < 0.7:
      size = float(int(self._typical_bytes * rng.lognormal(0, 1)))
      variable = self.op(f"{name}/variable", "VarHandleOp", 0.0, (), size, name)
      reads.append(variable)
    time_us = self._typical_us * float(rng.lognormal(0, 1))
    op = self.op(name, str(rng.choice(_TYPES)), time_us, reads)
    self.forwards.append(op)
    self._inputs[op] = inputs
    if len(reads) > len(inputs):
      self._variable[op] = reads[-1]
    return op

  def backward(self, op: int, gradient: dict[int, int]) -> None:
    if op not in gradient:
      return
    spec = self.ops[op]
    time_us = 2.0 * spec.time_us["GPU"]
    back = self.op(
      f"{spec.name}/grad", f"{spec.type}Grad", time_us, (op, gradient[op])
    )
    name = spec.name
    for source in self._inputs[op]:
      total = back
      if source in gradient:
        read = (back, gradient[source])
        total = self.op(f"{name}/add{source}", "AddN", 1.0, read)
      gradient[source] = total
    if op in self._variable:
      read, adam_us = (back, self._variable[op]), 0.1 * time_us
      update = f"{name}/update"
      self.op(update, "ResourceApplyAdam", adam_us, read, colocation=name)


def on_kinds(graph: OpGraph, cluster: Cluster) -> OpGraph:
  """Adds times for named kinds of GPUs and CPUs, such as `GPU-v100`.

  The kind with the highest memory bandwidth has the times of `GPU` or `CPU`,
  and times of the others grow in proportion.
  """
  time_us = dict(graph.time_us)
  for device in cluster.devices:
    if device.kind not in time_us and device.base_kind in time_us:
      alike = [d for d in cluster.devices if d.base_kind == device.base_kind]
      slower = max(map(_bandwidth, alike)) / _bandwidth(device)
      time_us[device.kind] = time_us[device.base_kind] * slower
  return dataclasses.replace(graph, time_us=time_us)


def _bandwidth(device: Device) -> float:
  """Returns the memory bandwidth of described hardware, or 1."""
  described = device.extra.get("hardware")
  known = described if isinstance(described, Mapping) else {}
  return float(known.get("bandwidth") or 1.0)
