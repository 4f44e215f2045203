"""Layers of ops, from the graph or from the scopes in op names.

A gradient belongs to the layer of its forward op. The steps of an unrolled loop
and the microbatches of a step share a layer.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from tfplace.core.microbatches import name_in_whole
from tfplace.core.op_names import forward_name
from tfplace.report.explain.config import CONFIG

_CALL = re.compile(r"_\d+$")
_STEP = re.compile(r"(?:step|encode|encode_back|decode|segment)_\d+")
OTHER = "(outside of layers)"

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
  scopes = _as_called([_scopes(name) for name in names])
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


def forward_starts(
  layers: Layers,
  start_us: np.ndarray,
  time_us: np.ndarray,
  is_forward: np.ndarray,
) -> np.ndarray:
  """Returns [num_layers] mean start times of forward ops, weighted by time.

  A layer without forward ops uses all its ops. Arguments are [num_ops].
  """
  count = len(layers.names)
  weight = time_us * np.where(is_forward, 1.0, 1e-9)
  whole = np.bincount(layers.layer_of, weight, count)
  middle = np.bincount(layers.layer_of, weight * start_us, count)
  return middle / np.maximum(whole, 1e-300)


def _scopes(name: str) -> Scope:
  """Maps `gradient_tape/model/step_3/lstm/MatMul` to ("model", "lstm")."""
  parts = forward_name(name_in_whole(name)).split("/")[:-1]
  return tuple(part for part in parts if not _STEP.fullmatch(part))


def _as_called(scopes: list[Scope]) -> list[Scope]:
  """Replaces scopes by the Keras names of layers.

  Keras opens a layer's scope to build it and again for each call, and
  TensorFlow makes scopes unique. Ops of layer "dense" in model "net" are in
  "net_1/dense_1", but its variables are in "net/dense", which reveals the name.
  """
  there = set(scopes)
  true = [tuple(_CALL.sub("", part) for part in scope) for scope in scopes]
  called = {
    scope[0]
    for scope, name in zip(scopes, true, strict=True)
    if len(scope) > 1
    and all(map(_CALL.search, scope[:2]))
    and (name in there or name[1:] in there)
  }
  return [
    name if scope and scope[0] in called else scope
    for scope, name in zip(scopes, true, strict=True)
  ]


def _model_scope(scopes: Sequence[Scope], weight: np.ndarray) -> Scope:
  """Finds the leading scopes that belong to the model as a whole."""
  head: Scope = ()
  inside = list(zip(scopes, weight.tolist(), strict=True))
  least = CONFIG.model_share * float(weight.sum())
  while least > 0 and len(head) < CONFIG.max_model_depth:
    sums: dict[str, float] = {}
    for scope, weighs in inside:
      # A scope without inner scopes is a layer, not the model.
      if len(scope) > len(head) + 1:
        sums[scope[len(head)]] = sums.get(scope[len(head)], 0.0) + weighs
    heaviest = max(sums, key=lambda name: sums[name], default="")
    if sums.get(heaviest, 0.0) < least:
      break
    head = *head, heaviest
    inside = [x for x in inside if x[0][: len(head)] == head]
  return head


def _divided(
  labels: list[Scope],
  scopes: Sequence[Scope],
  head: Scope,
  weight: np.ndarray,
  most_share: float,
) -> list[Scope]:
  """Divides heavy layers into the layers inside, as long as there are some."""
  most = most_share * float(weight.sum())
  for depth in range(len(head) + 1, len(head) + 1 + CONFIG.max_model_depth):
    sums: dict[Scope, float] = {}
    inner: dict[Scope, set[str]] = {}
    for label, scope, weighs in zip(
      labels, scopes, weight.tolist(), strict=True
    ):
      sums[label] = sums.get(label, 0.0) + weighs
      if len(scope) > depth and scope[:depth] == (*head, *label):
        inner.setdefault(label, set()).add(scope[depth])
    heavy = {label for label in inner if sums[label] > most}
    if not heavy:
      return labels
    labels = [
      (*label, scope[depth])
      if label in heavy
      and len(scope) > depth
      and scope[:depth] == (*head, *label)
      else label
      for label, scope in zip(labels, scopes, strict=True)
    ]
  return labels


def _label(scope: Scope, head: Scope) -> Scope:
  if scope[: len(head)] == head and len(scope) > len(head):
    return (scope[len(head)],)
  return scope[:1] if scope and scope[0] not in head else _OTHER
