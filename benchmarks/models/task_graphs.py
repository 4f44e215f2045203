"""Task graphs of the scheduling literature: no model, layer or name scope.

Fast Fourier transform, Gaussian elimination and random graphs as Topcuoglu,
Hariri and Wu describe them ("Performance-effective and low-complexity task
scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002), and tiled
Cholesky factorization. Times and bytes are drawn, so that the mean transfer
takes `ccr` (communication to computation ratio) times as long as the mean op.
"""

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from tfplace.core import Cluster, OpGraph, OpSpec, build_graph
from tfplace.simulate.links import mean_transfer

Edges = list[tuple[int, int]]
_MEAN_US = 100.0  # of an op
_SPREAD = 0.5  # Standard deviation of the log of times and bytes.


def fft(points: int) -> Edges:
  """Recursive calls, then butterflies; `points` is a power of two."""
  levels = points.bit_length() - 1
  edges = [
    (node, child)
    for node in range(points - 1)
    for child in (2 * node + 1, 2 * node + 2)
  ]
  first = points - 1  # of the leaves, which are the first row of butterflies
  for level in range(levels):
    for i in range(points):
      row = first + level * points
      for near in (i, i ^ (1 << level)):
        edges.append((row + near, row + points + i))
  return edges


def gaussian_elimination(size: int) -> Edges:
  """A pivot per column, then updates of the columns to its right."""
  number: dict[tuple[int, int], int] = {}
  edges: Edges = []
  for k in range(size - 1):
    for j in range(k, size):
      number[k, j] = len(number)
      if j > k:
        edges.append((number[k, k], number[k, j]))
      if k:
        edges.append((number[k - 1, max(j, k)], number[k, j]))
  return edges


def cholesky(tiles: int) -> Edges:
  """Right-looking factorization of a matrix of tiles."""
  last: dict[tuple[int, int], int] = {}  # Op that wrote each tile last.
  edges: Edges = []
  count = 0

  def add(writes: tuple[int, int], *reads: tuple[int, int]) -> None:
    nonlocal count
    sources = {last[tile] for tile in (writes, *reads) if tile in last}
    edges.extend((source, count) for source in sorted(sources))
    last[writes] = count
    count += 1

  for k in range(tiles):
    add((k, k))
    for i in range(k + 1, tiles):
      add((i, k), (k, k))
    for i, j in itertools.product(range(k + 1, tiles), repeat=2):
      if j <= i:
        add((i, j), (i, k), (j, k))
  return edges


def random_layers(count: int, shape: float = 1.0, seed: int = 0) -> Edges:
  """A random graph; its height is about sqrt(count) / `shape`."""
  rng = np.random.default_rng(seed)
  level = np.sort(rng.integers(max(2, round(count**0.5 / shape)), size=count))
  edges = set()
  for node in range(count):
    before = np.flatnonzero(level == level[node] - 1)
    if not len(before):
      continue
    for source in rng.choice(before, min(len(before), rng.integers(1, 6))):
      edges.add((int(source), node))
  return sorted(edges)


FAMILIES: Mapping[str, Callable[..., Edges]] = {
  "fft": fft,
  "gaussian_elimination": gaussian_elimination,
  "cholesky": cholesky,
  "random_layers": random_layers,
}


def task_graph(
  family: str, size: int, ccr: float, cluster: Cluster, seed: int = 0
) -> OpGraph:
  """Draws a graph for a cluster, on whose devices ops take the same time."""
  more = {"seed": seed} if family == "random_layers" else {}
  edges = FAMILIES[family](size, **more)
  count = 1 + max(node for edge in edges for node in edge)
  rng = np.random.default_rng(seed)
  low, high = -0.5 * _SPREAD**2, _SPREAD
  times = _MEAN_US * rng.lognormal(low, high, count)
  us_per_byte, fixed_us = mean_transfer(cluster)
  mean_bytes = max(ccr * _MEAN_US - fixed_us, 0.0) / us_per_byte
  sizes = (mean_bytes * rng.lognormal(low, high, count)).round()
  kinds = {device.kind for device in cluster.devices}
  ops = [
    OpSpec(f"t{i}", "Task", dict.fromkeys(kinds, time), [size])
    for i, (time, size) in enumerate(zip(times, sizes, strict=True))
  ]
  name = f"{family}_{count}_ccr{ccr:g}"
  return build_graph(name, ops, [(src, 0, dst) for src, dst in edges])
