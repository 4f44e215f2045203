"""Layers of ops, from the graph or from the scopes in op names.

A gradient belongs to the layer of its forward op. The steps of an unrolled loop
and the microbatches of a step share a layer.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from tfplace.graph import phases
from tfplace.graph.microbatches import name_in_whole
from tfplace.graph.op_names import forward_name
from tfplace.report.rows import compute_us
from tfplace.simulate import Schedule

_STEP = re.compile(r"(?:step|encode|encode_back|decode|segment)_\d+")
OTHER = "(outside of layers)"
_MODEL_SHARE = 0.6  # A scope with this share of the work is no layer.
_MAX_DEPTH = 4  # scopes around the layers

Scope = tuple[str, ...]
_OTHER: Scope = (OTHER,)


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
  """Ops grouped by layer.

  Attributes:
    names: [num_layers] shortest unique paths of the layers.
    layer_of: [num_ops] int64 index of each op's layer.
  """

  names: tuple[str, ...]
  layer_of: np.ndarray


def find_layers(
  names: Sequence[str],
  weight: np.ndarray,
  paths: Sequence[str | None] | None = None,
  most_share: float = 1.0,
) -> Layers:
  """Finds the layers of a graph, in order of appearance.

  Without layers and scopes, each op is a layer.

  Args:
    names: [num_ops] op names.
    weight: [num_ops] weight of each op, such as its time, used to tell the
      scope of the model from those of its layers.
    paths: [num_ops] `OpGraph.layer_paths`, preferred over names.
    most_share: share of all weight from which a layer of layers, such as a
      model in a model, is divided into these.
  """
  scopes = [_scopes(name) for name in names]
  for op, path in enumerate(paths or ()):
    if path is not None:
      scopes[op] = tuple(path.split("/"))
  head = _model_scope(scopes, weight)
  labels = [_label(scope, head) for scope in scopes]
  if most_share < 1.0:
    labels = _divided(labels, scopes, head, weight, most_share)
  outside = np.array([label == _OTHER for label in labels], bool)
  if float(weight[outside].sum()) > 0.5 * float(weight.sum()):
    labels = [(name,) for name in names]
  numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
  return Layers(
    tuple(_shortest(list(numbers), head)),
    np.array([numbers[x] for x in labels], np.int64),
  )


def _shortest(labels: Sequence[Scope], head: Scope) -> list[str]:
  """Returns the shortest unique path of each layer.

  Paths begin inside of `head`, unless only numbers would be left.
  """
  endings = collections.Counter(
    label[i:] for label in labels for i in range(len(label))
  )
  names = []
  for label in labels:
    begins = (i for i in reversed(range(len(label))) if endings[label[i:]] == 1)
    ending = label[next(begins, 0) :]
    around = (*head, *label)[: -len(ending)]
    while around and all(part.isdigit() for part in ending):
      ending, around = (around[-1], *ending), around[:-1]
    names.append("/".join(ending))
  return names


def layers_of(schedule: Schedule, most_share: float = 1.0) -> Layers:
  """Finds the layers of a step; see `find_layers`."""
  problem = schedule.placement.problem
  graph = problem.graph
  return find_layers(
    graph.names, problem.fastest_us, graph.layer_paths, most_share
  )


def forward_starts(layers: Layers, schedule: Schedule) -> np.ndarray:
  """Returns [num_layers] mean start times of forward ops, weighted by time.

  A layer without forward ops uses all its ops.
  """
  is_forward = phases.is_forward(schedule.placement.problem.graph)
  weight = compute_us(schedule) * np.where(is_forward, 1.0, 1e-9)
  count = len(layers.names)
  whole = np.bincount(layers.layer_of, weight, count)
  middle = np.bincount(layers.layer_of, weight * schedule.op_start_us, count)
  return middle / np.maximum(whole, 1e-300)


def times_by_device(
  layers: Layers, schedule: Schedule, time_us: np.ndarray
) -> np.ndarray:
  """Adds [num_ops] times by layer and device: [num_layers, num_devices]."""
  cells = layers.layer_of, schedule.placement.devices
  shape = len(layers.names), len(schedule.memory)
  return scipy.sparse.coo_array((time_us, cells), shape).toarray()


def _scopes(name: str) -> Scope:
  """Maps `gradient_tape/model/step_3/lstm/MatMul` to ("model", "lstm")."""
  parts = forward_name(name_in_whole(name)).split("/")[:-1]
  return tuple(part for part in parts if not _STEP.fullmatch(part))


def _model_scope(scopes: Sequence[Scope], weight: np.ndarray) -> Scope:
  """Finds the leading scopes that belong to the model as a whole."""
  head: Scope = ()
  inside = list(zip(scopes, weight.tolist(), strict=True))
  least = _MODEL_SHARE * float(weight.sum())
  while least > 0 and len(head) < _MAX_DEPTH:
    sums: collections.Counter[str] = collections.Counter()
    for scope, weighs in inside:
      # A scope without inner scopes is a layer, not the model.
      if len(scope) > len(head) + 1:
        sums[scope[len(head)]] += weighs
    heaviest = max(sums, key=lambda name: sums[name], default="")
    if sums[heaviest] < least:
      break
    head = *head, heaviest
    inside = [x for x in inside if x[0][: len(head)] == head]
  return head


def _label(scope: Scope, head: Scope) -> Scope:
  if scope[: len(head)] == head and len(scope) > len(head):
    return (scope[len(head)],)
  return scope[:1] if scope and scope[0] not in head else _OTHER


def _divided(
  labels: list[Scope],
  scopes: Sequence[Scope],
  head: Scope,
  weight: np.ndarray,
  most_share: float,
) -> list[Scope]:
  """Divides heavy layers into the layers inside, as long as there are some."""
  most = most_share * float(weight.sum())
  for _ in range(_MAX_DEPTH):
    sums: collections.Counter[Scope] = collections.Counter()
    for label, weighs in zip(labels, weight.tolist(), strict=True):
      sums[label] += weighs
    inner = [
      (*label, *scope[len(head) + len(label) :][:1])
      if sums[label] > most and scope[: len(head) + len(label)] == head + label
      else label
      for label, scope in zip(labels, scopes, strict=True)
    ]
    if inner == labels:
      break
    labels = inner
  return labels
