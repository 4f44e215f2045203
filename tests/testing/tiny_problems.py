"""Random problems with few placements: every rule, ties, three kinds."""

import dataclasses
import math

import numpy as np

from tfplace.graph import Cluster, Device, Link, OpSpec, Problem, build_graph
from tfplace.graph.cluster import MESSAGE_COSTS

KINDS = ("GPU", "CPU", "TPU")


def number(rng, high, zero):
  """0, a small integer (so that much ties), or all the digits of a double."""
  if rng.random() < zero:
    return 0.0
  value = rng.random() * high
  return float(np.ceil(value)) if rng.random() < 0.7 else float(value)


def costly_problem(seed):
  """The same, where messages take time of devices."""
  problem, rng = tiny_problem(seed), np.random.default_rng(seed)
  links = [
    dataclasses.replace(
      link, **{name: number(rng, 2, 0.4) for name in MESSAGE_COSTS}
    )
    for link in problem.cluster.links
  ]
  cluster = dataclasses.replace(problem.cluster, links=tuple(links))
  return Problem(problem.graph, cluster)


def tiny_problem(seed):
  """Problem of at most 7 ops on 3 devices; the first runs everything."""
  rng = np.random.default_rng(seed)
  num_devices = int(rng.integers(1, 4))
  kinds = KINDS[: int(rng.integers(1, 4))]
  scale = float(rng.choice([1, 10]))  # of transfers against ops
  cluster = tiny_cluster(rng, num_devices, kinds, scale)
  num_ops = int(rng.integers(1, 8))
  ops = [random_op(rng, i, kinds) for i in range(num_ops)]
  rank = rng.permutation(num_ops)
  edges = set()
  for _ in range(int(rng.integers(0, 2 * num_ops + 1))):
    a, b = sorted(rng.integers(0, num_ops, 2), key=lambda op: rank[op])
    if a != b:
      output = int(rng.integers(-1, len(ops[a].output_bytes)))
      edges.add((int(a), output, int(b)))
  return Problem(build_graph("tiny", ops, sorted(edges)), cluster)


def tiny_cluster(rng, num_devices, kinds, scale):
  devices = tuple(
    Device(
      f"d{i}",
      "GPU" if i == 0 else str(rng.choice(kinds)),
      math.inf if rng.random() < 0.6 else float(rng.integers(5, 40)),
      number(rng, 3, 0.4),
    )
    for i in range(num_devices)
  )
  if rng.random() < 0.5:  # alike, so that they stand for each other
    alike = next(d.op_overhead_us for d in devices)
    devices = tuple(
      Device(d.name, d.kind, d.memory_bytes, alike) for d in devices
    )
  shared = rng.random() < 0.4
  links = tuple(
    Link(
      f"d{i}",
      f"d{j}",
      float(rng.uniform(0.5, 4)) / scale,
      number(rng, 4, 0.5),
      number(rng, 4, 0.5),
      str(rng.integers(2)) if shared else None,
    )
    for i in range(num_devices)
    for j in range(num_devices)
    if i != j and rng.random() < 0.9
  )
  return Cluster("c", devices, links)


def random_op(rng, i, kinds):
  times = {"GPU": number(rng, 9, 0.2)}
  for kind in kinds[1:]:
    if rng.random() < 0.7:
      times[kind] = number(rng, 20, 0.1)
  return OpSpec(
    f"o{i}",
    "Op",
    times,
    output_bytes=[number(rng, 6, 0.2) for _ in range(rng.integers(0, 3))],
    persistent_bytes=number(rng, 9, 0.5),
    temp_bytes=number(rng, 9, 0.5),
    colocation=f"c{rng.integers(2)}" if rng.random() < 0.3 else None,
  )
