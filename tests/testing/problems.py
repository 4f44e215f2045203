"""Small problems for the tests of placers."""

import numpy as np

from tfplace.graph import Cluster, Device, Link, OpSpec, Problem, build_graph


def cluster(
  memories, kinds=None, overhead=0.0, bandwidth=1.0, latency=0.0, links=None
):
  """Devices d0, d1, ...; `links` are index pairs, all of them by default."""
  count = len(memories)
  kinds = kinds or ["GPU"] * count
  devices = tuple(
    Device(f"d{i}", kind, memory, overhead)
    for i, (kind, memory) in enumerate(zip(kinds, memories, strict=True))
  )
  if links is None:
    links = [(i, j) for i in range(count) for j in range(count) if i != j]
  return Cluster(
    "c",
    devices,
    tuple(Link(f"d{i}", f"d{j}", bandwidth, latency) for i, j in links),
  )


def graph(times, edges, **fields):
  """Ops o0, o1, ... with one output each; `fields` hold a value per op."""
  ops = []
  for i, time in enumerate(times):
    values = {key: value[i] for key, value in fields.items()}
    values.setdefault("output_bytes", (0.0,))
    time_us = time if isinstance(time, dict) else {"GPU": time}
    ops.append(OpSpec(f"o{i}", "Op", time_us, **values))
  return build_graph("g", ops, [(a, 0, b) for a, b in edges])


def random_problem(seed):
  """A random problem that has a feasible placement: memory is unlimited on
  one device of a kind that runs everything and is linked both ways to all."""
  rng = np.random.default_rng(seed)
  num_ops = int(rng.integers(1, 25))
  num_devices = int(rng.integers(1, 5))
  kinds = ["GPU", *rng.choice(["GPU", "CPU"], num_devices - 1)]
  ops = []
  for i in range(num_ops):
    times = {"GPU": float(rng.choice([0, 1, 5, rng.uniform(0, 9)]))}
    if rng.random() < 0.6:
      times["CPU"] = float(rng.uniform(0, 30))
    ops.append(
      OpSpec(
        f"o{i}",
        "Op",
        times,
        output_bytes=tuple(rng.integers(0, 50, rng.integers(1, 3))),
        persistent_bytes=float(rng.integers(0, 30)),
        temp_bytes=float(rng.integers(0, 10)),
        colocation=f"c{rng.integers(4)}" if rng.random() < 0.4 else None,
      )
    )
  edges = set()
  for _ in range(2 * num_ops):
    a, b = sorted(rng.integers(0, num_ops, 2))
    if a != b:
      output = int(rng.integers(-1, len(ops[a].output_bytes)))
      edges.add((int(a), output, int(b)))
  links = [
    (i, j)
    for i in range(num_devices)
    for j in range(num_devices)
    if i != j and (0 in (i, j) or rng.random() < 0.7)
  ]
  memories = [np.inf] + [
    float(rng.choice([np.inf, rng.integers(20, 400)]))
    for _ in range(num_devices - 1)
  ]
  return Problem(
    build_graph("g", ops, sorted(edges)),
    cluster(
      memories,
      kinds,
      float(rng.choice([0, 2])),
      float(rng.uniform(1, 20)),
      float(rng.choice([0, 3])),
      links,
    ),
  )


def two_halves():
  """Eight ops in two cliques of a pipeline, with one thin edge between: o0 to
  o3 send each other 1000 bytes, and so do o4 to o7; o0 sends 1 byte to o4.

  On two devices and links of 1 byte/us, the halves of 4 us each are cut at
  the thin edge: o0 ends at 1, its byte arrives at 2, and o4 to o7 run in
  [2, 6]; together on one device they take 8.
  """
  edges = [(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)]
  ops = [
    OpSpec(f"o{i}", "Op", {"GPU": 1.0}, [1000.0, 1.0 if i == 0 else 0.0])
    for i in range(8)
  ]
  links = [*((a, 0, b) for a, b in edges), (0, 1, 4)]
  return Problem(build_graph("g", ops, links), cluster([np.inf] * 2))


def small_problem(seed):
  """`random_problem` with at most 8 groups, so that `optimum` is quick."""
  rng = np.random.default_rng(seed)
  while True:
    problem = random_problem(int(rng.integers(1 << 30)))
    choices = np.prod(problem.group_allowed.sum(axis=1), dtype=float)
    if problem.num_groups >= 3 and choices <= 5000:
      return problem
