"""Which layer of the model each op belongs to: as the graph says, where it
knows; else by the scopes in op names. A gradient counts with its forward op,
and the steps of an unrolled loop and the microbatches of a step are one layer.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from tfplace.report.phases import forward_name

_CALL = re.compile(r"_\d+$")
_STEP = re.compile(r"(?:step|encode|encode_back|decode|segment)_\d+")
OTHER = "(outside of layers)"
# A scope that holds so much of the work is the model, not a layer of it.
_MODEL_SHARE = 0.6
_MAX_MODEL_DEPTH = 4

Scope = tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
  """Ops by layer.

  Attributes:
    names: [num_layers] of the layers.
    layer_of: [num_ops] int64 number of each op's layer.
  """

  names: tuple[str, ...]
  layer_of: np.ndarray


def find_layers(
  names: Sequence[str],
  weight: np.ndarray,
  paths: Sequence[str | None] | None = None,
) -> Layers:
  """The layers of a graph, in order of appearance.

  Without layers and scopes, each op is a layer.

  Args:
    names: [num_ops] op names.
    weight: [num_ops] what each op counts for, such as its time: tells the
      scope of the model from those of its layers.
    paths: [num_ops] `OpGraph.layer_paths`: where there is one, it counts
      instead of the name.
  """
  scopes = _as_called([_scopes(name) for name in names])
  for op, path in enumerate(paths or ()):
    if path is not None:
      scopes[op] = tuple(path.split("/"))
  head = _model_scope(scopes, weight)
  labels = [_label(scope, head) for scope in scopes]
  outside = np.array([label == OTHER for label in labels], bool)
  if float(weight[outside].sum()) > 0.5 * float(weight.sum()):
    labels = list(names)
  numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
  return Layers(
    tuple(numbers), np.array([numbers[x] for x in labels], np.int64)
  )


def forward_starts(
  layers: Layers,
  start_us: np.ndarray,
  time_us: np.ndarray,
  is_forward: np.ndarray,
) -> np.ndarray:
  """[num_layers] when the forward ops of each start, on average by their time;
  of a layer without any, all ops count.

  Args:
    layers: of the ops.
    start_us: [num_ops] float64.
    time_us: [num_ops] float64.
    is_forward: [num_ops] bool.
  """
  count = len(layers.names)
  weight = time_us * np.where(is_forward, 1.0, 1e-9)
  whole = np.bincount(layers.layer_of, weight, count)
  middle = np.bincount(layers.layer_of, weight * start_us, count)
  return middle / np.maximum(whole, 1e-300)


def _scopes(name: str) -> Scope:
  """`gradient_tape/model/step_3/lstm/MatMul` -> ("model", "lstm")."""
  parts = forward_name(name).split("/")[:-1]
  return tuple(part for part in parts if not _STEP.fullmatch(part))


def _as_called(scopes: list[Scope]) -> list[Scope]:
  """The scopes by the names that a Keras model has for its layers.

  Keras opens a layer's scope once to build it and once more for each call, and
  TensorFlow makes scopes unique: the ops of layer "dense" of model "net" are
  in "net_1/dense_1", and its variables are "net/dense/kernel", which tells.
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
  """The scopes at the front of names that are the model's own."""
  head: Scope = ()
  inside = list(zip(scopes, weight.tolist(), strict=True))
  least = _MODEL_SHARE * float(weight.sum())
  while least > 0 and len(head) < _MAX_MODEL_DEPTH:
    sums: dict[str, float] = {}
    for scope, weighs in inside:
      # With something below it, else it is a layer.
      if len(scope) > len(head) + 1:
        sums[scope[len(head)]] = sums.get(scope[len(head)], 0.0) + weighs
    heaviest = max(sums, key=lambda name: sums[name], default="")
    if sums.get(heaviest, 0.0) < least:
      break
    head = *head, heaviest
    inside = [x for x in inside if x[0][: len(head)] == head]
  return head


def _label(scope: Scope, head: Scope) -> str:
  if scope[: len(head)] == head and len(scope) > len(head):
    return scope[len(head)]
  return scope[0] if scope and scope[0] not in head else OTHER
