"""Segments: sets of forward ops that are recomputed together."""

import bisect
import difflib
import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import ExtractionError
from tfplace.graph.paths import DisjointSets
from tfplace.graph.recompute import RecomputeConfig
from tfplace.variants.recompute.dataflow import Dataflow, tensor_bytes

_SMALL_BYTES = 1024  # A tensor of at most this size is kept.
_LIMITS = 12  # Number of segment sizes that are tried.

Layers = Mapping[str, tuple[str, ...]]
Segment = set[int]  # Positions of forward ops.


def find_segments(
  flow: Dataflow, config: RecomputeConfig, layers: Layers, model: Any
) -> list[Segment]:
  """Returns the segments that a config asks for, in order of the graph.

  Args:
    flow: the traced step.
    config: what to recompute.
    layers: op name -> names of its layers, innermost first.
    model: the Keras model, for messages.
  """
  if config.ops:
    return [
      {flow.index[name] for name in names if name in flow.index}
      for names in config.ops
    ]
  inside = [
    i
    for i in range(flow.first_backward)
    if flow.ops[i].name in layers and flow.can_clone(i) and _is_large(flow, i)
  ]
  if config.everything:
    return _balanced(flow, inside)
  known = {layer.name for layer in model._flatten_layers()}
  wanted = [_matching(names, known, model.name) for names in config.layers]
  by_layer: dict[Any, Segment] = {}
  for i in inside:
    key = _key(layers[flow.ops[i].name], wanted, config.layers)
    if key is not None:
      by_layer.setdefault(key, set()).add(i)
  parts = [part for ops in by_layer.values() for part in _connected(flow, ops)]
  return sorted(parts, key=min)


def _is_large(flow: Dataflow, position: int) -> bool:
  return any(tensor_bytes(t) > _SMALL_BYTES for t in flow.ops[position].outputs)


def _matching(
  names: Sequence[str], known: set[str], model: str
) -> frozenset[str]:
  layers: set[str] = set()
  for name in names:
    matches = {name} & known or set(fnmatch.filter(known, name))
    if not matches:
      near = difflib.get_close_matches(name, sorted(known), n=3)
      meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
      raise ExtractionError(
        f"recompute names {name!r}, which is no layer of model {model!r}{meant}"
      )
    layers |= matches
  return frozenset(layers)


def _key(
  layers: Sequence[str],
  wanted: Sequence[frozenset[str]],
  requests: Sequence[Sequence[str]],
) -> Any:
  """Returns the segment of an op in these layers, or None.

  The outermost layer that matches is recomputed.
  """
  for number, (names, request) in enumerate(zip(wanted, requests, strict=True)):
    for depth in reversed(range(len(layers))):
      if layers[depth] in names:
        return number if len(request) > 1 else tuple(layers[depth:])
  return None


def _connected(flow: Dataflow, ops: Segment) -> list[Segment]:
  """Divides a segment into parts without data edges between them.

  Each call of a shared layer is a part.
  """
  order = sorted(ops)
  number = {op: i for i, op in enumerate(order)}
  sets = DisjointSets(len(order))
  for op in order:
    for reader in flow.readers[op] & ops:
      sets.union(number[op], number[reader])
  parts: dict[int, Segment] = {}
  for op in order:
    parts.setdefault(sets.find(number[op]), set()).add(op)
  return list(parts.values())


def _balanced(flow: Dataflow, inside: Sequence[int]) -> list[Segment]:
  """Divides consecutive ops so that kept bytes plus a segment are least.

  This is the search over segment sizes of Chen et al. (2016, algorithm 3). A
  cut is made where the fewest bytes cross. The last segment is not recomputed,
  because its gradient arrives at once.
  """
  spans, saved = _spans(flow, inside)
  crossing = np.zeros(len(inside) + 1)
  for first, last, size in spans:
    crossing[first + 1] += size
    crossing[last + 1] -= size
  crossing = np.cumsum(crossing)
  best, least = [0, len(inside)], np.inf
  total = float(saved.sum())
  for limit in np.geomspace(max(total / 256, 1.0), max(total, 1.0), _LIMITS):
    cuts = _cuts(saved, crossing, float(limit))
    bounds = [0, *cuts, len(inside)]
    inner = max(saved[a:b].sum() for a, b in itertools.pairwise(bounds))
    kept = sum(
      size
      for first, last, size in spans
      if bisect.bisect(cuts, last) > bisect.bisect(cuts, first)
    )
    if inner + kept < least:
      least, best = inner + kept, bounds
  pairs = list(itertools.pairwise(best))[:-1]
  return [set(inside[a:b]) for a, b in pairs if b > a]


def _spans(
  flow: Dataflow, inside: Sequence[int]
) -> tuple[list[tuple[int, int, float]], np.ndarray]:
  """Returns (first, last use in the forward pass, bytes) of large tensors.

  Also returns, by op, the bytes that the backward pass reads.
  """
  number = {op: i for i, op in enumerate(inside)}
  spans, saved = [], np.zeros(len(inside))
  for i, op in enumerate(inside):
    for tensor in flow.ops[op].outputs:
      size = min(tensor_bytes(tensor), 1e18)
      if size <= _SMALL_BYTES:
        continue
      uses = [number[c] for c in flow.consumers(tensor) if c in number]
      if uses:
        spans.append((i, max(uses), size))
      if flow.reads_backward(tensor):
        saved[i] += size
  return spans, saved


def _cuts(saved: np.ndarray, crossing: np.ndarray, limit: float) -> list[int]:
  """Cuts when a segment exceeds the limit, where the fewest bytes cross."""
  cuts: list[int] = []
  start, held = 0, 0.0
  for i, size in enumerate(saved):
    held += size
    if held <= limit or i == start:
      continue
    window = crossing[start + 1 : i + 1]
    cut = start + 1 + len(window) - 1 - int(np.argmin(window[::-1]))
    cuts.append(cut)
    start, held = cut, float(saved[cut : i + 1].sum())
  return cuts
