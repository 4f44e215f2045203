"""Child process of the `scotch` placer: reads a graph, writes its mappings.

Scotch cannot be interrupted, and pyscotch prints to stderr when it loads. A
process of its own can be killed, keeps that text from the terminal, and starts
in 0.2 s, because it imports nothing else of tfplace.
"""

import ctypes
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np


def pack(arrays: Sequence[np.ndarray]) -> bytes:
  """Serializes the arguments of `mappings`, one `.npy` after the other."""
  stream = io.BytesIO()
  for array in arrays:
    np.save(stream, array, allow_pickle=False)
  return stream.getvalue()


def main(requests: BinaryIO) -> None:
  """Maps a graph onto two or more parts, once for each seed.

  Reads the fields of a `WeightedGraph`, the [num_parts, num_parts] distances
  and the [num_seeds] seeds. Writes each mapping as [num_vertices] int64 as soon
  as it is known.
  """
  # All other output belongs to the error message.
  answers = os.dup(1)
  os.dup2(2, 1)
  import pyscotch  # Loads the library, and says so on stderr.

  stream = io.BytesIO(requests.read())
  offsets, adjacent, edge_weights, vertex_weights, distance, seeds = (
    np.load(stream, allow_pickle=False) for _ in range(6)
  )
  graph = pyscotch.Graph()
  graph.build(offsets, adjacent, vertex_weights, edge_weights)
  target, part_of = _target(distance)
  with open(answers, "wb") as written:
    for seed in seeds.tolist():
      pyscotch.random_seed(seed)
      pyscotch.random_reset()
      parts = part_of[graph.map(target)]
      written.write(parts.astype(np.int64).tobytes())
      written.flush()


def hosts_of(distance: np.ndarray) -> np.ndarray | None:
  """Finds the hosts of a hierarchy of two levels.

  Args:
    distance: [num_parts, num_parts] int64, symmetric.

  Returns:
    [num_hosts, parts_per_host] parts, one row per host; None unless all pairs
    in a host are equally near, all others equally far, and hosts are of one
    size.
  """
  away = ~np.eye(len(distance), dtype=bool)
  near = distance <= distance[away].min()
  hosts = [row.tobytes() for row in near | ~away]
  first = list(dict.fromkeys(hosts))
  members = [[i for i, h in enumerate(hosts) if h == host] for host in first]
  if len({len(parts) for parts in members}) > 1:
    return None
  result = np.array(members)
  is_far = np.ones_like(away)
  for parts in members:
    is_far[np.ix_(parts, parts)] = False
  far, close = distance[is_far], distance[~is_far & away]
  if len(set(far.tolist())) > 1 or len(set(close.tolist())) > 1:
    return None
  return result


def _target(distance: np.ndarray) -> tuple[Any, np.ndarray]:
  """Builds an `Architecture`; returns it and the part of each terminal."""
  import pyscotch

  num_parts = len(distance)
  hosts = hosts_of(distance)
  if hosts is None:
    return _any_target(distance), np.arange(num_parts)
  target, (num_hosts, per_host) = pyscotch.Architecture(), hosts.shape
  if min(num_hosts, per_host) == 1:
    target.complete(num_parts)
  else:
    links = distance[hosts[0, 0], [hosts[1, 0], hosts[0, 1]]]
    target.tree_leaf(2, np.array(hosts.shape), links)
  return target, hosts.reshape(-1)


def _any_target(distance: np.ndarray) -> Any:
  """Builds the `Architecture` of the complete graph of any distances.

  The class has no method for `SCOTCH_archBuild`, so its binding is called.
  """
  import pyscotch
  from pyscotch import libscotch

  num_parts = len(distance)
  away = ~np.eye(num_parts, dtype=bool)
  graph = pyscotch.Graph()
  graph.build(
    np.arange(num_parts + 1) * (num_parts - 1),
    np.nonzero(away)[1],
    edlotab=distance[away],
  )
  target, strategy = pyscotch.Architecture(), pyscotch.Strategy()
  pyscotch.random_reset()
  code = libscotch.SCOTCH_archBuild(
    ctypes.byref(target._arch),
    ctypes.byref(graph._graph),
    0,
    None,
    ctypes.byref(strategy._strat),
  )
  if code:
    raise libscotch.scotch_error("SCOTCH_archBuild failed", code)
  return target


if __name__ == "__main__":
  main(sys.stdin.buffer)
