"""Random problems and placements, rich in ties, for the simulator's tests."""

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st

from tfplace.graph.cluster import MESSAGE_COSTS, Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem

KINDS = ("GPU", "CPU")
# Few placements, so that all can be tried; three kinds, and links that lack.
TINY = {
  "max_devices": 3,
  "max_ops": 7,
  "kinds": ("GPU", "CPU", "TPU"),
  "linked": 0.9,
}


def random_case(rng, max_devices=4, max_ops=14, kinds=KINDS, linked=1.0):
  """A random problem and one placement that it allows, if all are linked.

  Times and bytes are small integers (so that much happens at one instant) or
  doubles with all their digits. `linked` is the share of links that are there.
  """
  num_devices = int(rng.integers(1, max_devices + 1))
  integers = bool(rng.random() < 0.7)
  cluster = random_cluster(rng, num_devices, integers, kinds, linked)
  num_ops = int(rng.integers(0, max_ops + 1))
  problem = Problem(random_graph(rng, num_ops, integers, kinds), cluster)
  return problem, random_placement(rng, problem)


def costly_case(rng, **sizes):
  """The same on links of which most take time of their devices.

  Where the numbers are integers, receives and ops become ready together often.
  """
  problem, devices = random_case(rng, **sizes)
  integers = bool(rng.random() < 0.7)
  used = [name for name in MESSAGE_COSTS if rng.random() < 0.75]

  def cost(name):
    if name not in used or rng.random() < 0.25:
      return 0.0
    per_byte = name.endswith("byte")
    if integers:
      return float(rng.choice([0.5, 1.0] if per_byte else [1.0, 2.0]))
    return float(rng.random()) * (0.3 if per_byte else 2.0)

  links = [
    dataclasses.replace(link, **{name: cost(name) for name in MESSAGE_COSTS})
    for link in problem.cluster.links
  ]
  cluster = dataclasses.replace(problem.cluster, links=tuple(links))
  return Problem(problem.graph, cluster), devices


def _number(rng, high, integers, zero=0.3):
  if rng.random() < zero:
    return 0.0
  return (
    float(rng.integers(1, high)) if integers else float(rng.random() * high)
  )


def random_cluster(rng, num_devices, integers, kinds=KINDS, linked=1.0):
  """Channels may be shared; the first device runs all ops."""
  devices = [
    Device(
      f"d{i}",
      "GPU" if i == 0 else str(rng.choice(kinds)),
      math.inf if rng.random() < 0.5 else float(rng.integers(5, 60)),
      _number(rng, 3, integers, 0.5),
    )
    for i in range(num_devices)
  ]
  style = rng.choice(["own", "by source", "mixed", "one"])
  links = []
  for i in range(num_devices):
    for j in range(num_devices):
      if i == j or (linked < 1 and rng.random() > linked):
        continue
      channel = {
        "own": None,
        "by source": f"from {i}",
        "mixed": str(rng.choice(["x", "y"])) if rng.random() < 0.6 else None,
        "one": "bus",
      }[str(style)]
      links.append(
        Link(
          f"d{i}",
          f"d{j}",
          float(rng.choice([1.0, 2.0])) if integers else 0.3 + rng.random(),
          _number(rng, 3, integers, 0.6),
          _number(rng, 3, integers, 0.6),
          channel,
        )
      )
  return Cluster("c", tuple(devices), tuple(links))


def random_graph(rng, num_ops, integers, kinds=KINDS):
  ops = []
  for i in range(num_ops):
    time_us = {"GPU": _number(rng, 4, integers)}
    for kind in kinds[1:]:
      if rng.random() < 0.7:  # the others cannot run there
        time_us[kind] = _number(rng, 6, integers)
    outputs = int(rng.integers(0, 4))
    ops.append(
      OpSpec(
        f"op{i}",
        "Op",
        time_us,
        [_number(rng, 6, integers) for _ in range(outputs)],
        _number(rng, 9, integers, 0.7),
        _number(rng, 9, integers, 0.7),
        str(rng.choice(["p", "q"])) if rng.random() < 0.2 else None,
      )
    )
  # Positions are not a topological order: ties go by position.
  rank = rng.permutation(num_ops)
  edges = set()
  for _ in range(int(rng.integers(0, 3 * num_ops + 1))):
    a, b = rng.integers(0, num_ops, 2)
    if rank[a] > rank[b]:
      a, b = b, a
    if a != b:
      output = int(rng.integers(-1, len(ops[a].output_bytes)))
      edges.add((int(a), output, int(b)))
  edges = sorted(edges)
  return build_graph("g", ops, [edges[i] for i in rng.permutation(len(edges))])


def random_placement(rng, problem):
  group = np.array(
    [rng.choice(np.flatnonzero(row)) for row in problem.group_allowed], int
  )
  groups = problem.group_of
  return (
    group[groups].astype(np.int32) if len(groups) else np.zeros(0, np.int32)
  )


@st.composite
def tied_cases(draw):
  """Small problems of times and bytes 0 to 2, which Hypothesis can shrink."""
  num_devices = draw(st.integers(1, 3))
  small = st.sampled_from([0.0, 1.0, 2.0])
  devices = tuple(
    Device(f"d{i}", "GPU", draw(st.sampled_from([3.0, math.inf])), draw(small))
    for i in range(num_devices)
  )
  costs = small if draw(st.booleans()) else st.just(0.0)
  links = tuple(
    Link(
      f"d{i}",
      f"d{j}",
      1.0,
      draw(small),
      draw(small),
      draw(st.sampled_from([None, "x"])),
      *(draw(costs) for _ in MESSAGE_COSTS),
    )
    for i in range(num_devices)
    for j in range(num_devices)
    if i != j
  )
  num_ops = draw(st.integers(0, 8))
  sizes = st.lists(small, max_size=2)
  ops = [
    OpSpec(f"op{i}", "Op", {"GPU": draw(small)}, draw(sizes), 0.0, draw(small))
    for i in range(num_ops)
  ]
  edges = set()
  for a in range(num_ops):
    for b in range(a + 1, num_ops):
      if draw(st.booleans()):
        output = draw(st.integers(-1, len(ops[a].output_bytes) - 1))
        edges.add((a, output, b))
  order = draw(st.permutations(range(num_ops)))
  place = {op: i for i, op in enumerate(order)}
  problem = Problem(
    build_graph(
      "g",
      [ops[i] for i in order],
      sorted((place[a], output, place[b]) for a, output, b in edges),
    ),
    Cluster("c", devices, links),
  )
  rows = st.lists(
    st.integers(0, num_devices - 1), min_size=num_ops, max_size=num_ops
  )
  return problem, np.array(draw(rows), np.int32)
