"""A step of one layer, whose best split in microbatches is known."""

import dataclasses

import numpy as np

from tests.testing.clusters import linked
from tfplace.errors import ExtractionError
from tfplace.graph import Device, OpSpec, Problem, build_graph
from tfplace.plan.variants import StepVariant


@dataclasses.dataclass
class Step:
  """A step of one layer: forward, then backward, and one update at the end.

  Split k times it has k pairs of ops, each of an equal part of the time and of
  the activation, which lives from the forward to the backward pass.

  `opened` are the splits that were extracted.
  """

  work_us: float = 1000.0
  overhead_us: float = 0.0
  activation: float = 0.0
  variable: float = 0.0
  memory: float = np.inf
  devices: int = 2
  examples: int = 64
  statistics: bool = False
  layers: int = 1

  def __post_init__(self):
    self.opened = []

  def open(self, microbatches, show=None):
    k = microbatches.count
    if k > self.examples:
      raise ExtractionError(f"the batch has {self.examples} examples")
    if self.statistics and k > 1 and not microbatches.allow_batch_statistics:
      raise ExtractionError("layer 'norm' computes statistics")
    self.opened.append((k, microbatches.max_in_flight))
    return StepVariant(Problem(self.graph(microbatches), self.cluster()))

  def graph(self, microbatches):
    k, names = microbatches.count, []
    part_us = self.work_us / (2 * k * self.layers)
    ops, edges = [], []
    for i in range(k):
      row = [f"{kind}{n}" for kind in "fb" for n in range(self.layers)]
      for name in row:
        size = self.activation / k if name.startswith("f") else 0.0
        scope = f"microbatch_{i}/" if k > 1 else ""
        names.append(scope + name)
        of = i if k > 1 else None
        ops.append(
          OpSpec(names[-1], "X", {"GPU": part_us}, [size], microbatch=of)
        )
      first = i * len(row)
      edges += [(first + n, 0, first + n + 1) for n in range(len(row) - 1)]
      edges.append((first + len(row) - 1, 0, k * len(row)))
      if (
        microbatches.max_in_flight is not None
        and i >= microbatches.max_in_flight
      ):
        before = first - (microbatches.max_in_flight - 1) * len(row) - 1
        edges.append((before, -1, first))
    update = OpSpec("update", "X", {"GPU": 1.0}, [0.0], self.variable)
    return build_graph("step", [*ops, update], edges)

  def cluster(self):
    fields = ("GPU", self.memory, self.overhead_us)
    names = [f"GPU:{i}" for i in range(self.devices)]
    return linked([Device(name, *fields) for name in names], 1e6, 1.0)
