"""Which layer of the model each op belongs to, for people.

As the graph says, where it knows; else by the scopes in op names, with which a
gradient counts with its forward op, and the steps of an unrolled loop are one
layer. Without layers and scopes, each op is a layer.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

_GRADIENT = re.compile(r"^(?:gradient_tape|gradients|Gradients)/")
_CALL = re.compile(r"_\d+$")
_STEP = re.compile(r"(?:step|encode|encode_back|decode|segment)_\d+")
OTHER = "(outside of layers)"
BETWEEN = " \N{HORIZONTAL ELLIPSIS} "  # the first and the last layer of a block
# A scope that holds so much of the work is the model, not a layer of it.
_MODEL_SHARE = 0.6
_MAX_MODEL_DEPTH = 4


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

  Args:
    names: [num_ops] op names.
    weight: [num_ops] what each op counts for, such as its time: tells the
      scope of the model from those of its layers.
    paths: [num_ops] `OpGraph.layer_paths`: of ops with one, names are not
      looked at.
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


def is_gradient(name: str) -> bool:
  """Whether an op computes a gradient, by its name."""
  return _GRADIENT.match(name) is not None


def fold_small(layers: Layers, weight: np.ndarray, share: float) -> Layers:
  """The layers, those with less than this share of all weight being one.

  Args:
    layers: to be folded.
    weight: [num_layers] what each counts for.
    share: in 0 to 1.
  """
  is_small = weight < share * float(weight.sum())
  if not is_small.any() or is_small.all():
    return layers
  names = [
    n for n, small in zip(layers.names, is_small, strict=True) if not small
  ]
  if OTHER not in names:
    names.append(OTHER)
  number = np.where(is_small, names.index(OTHER), np.cumsum(~is_small) - 1)
  return Layers(tuple(names), number[layers.layer_of])


def merge_in_order(
  layers: Layers, position: np.ndarray, weight: np.ndarray, limit: int
) -> Layers:
  """At most `limit` layers: neighbours in order become blocks of like weight.

  Args:
    layers: to be merged.
    position: [num_layers] where each layer stands.
    weight: [num_layers] what each counts for.
    limit: at least 1.

  Returns:
    The layers in order of `position`; a block has the names of its first and
    its last layer.
  """
  order = np.argsort(position, kind="stable")
  block = np.arange(len(order))
  if len(order) > limit:
    share = weight[order] + 1e-9 * max(float(weight.sum()), 1e-300)
    middle = (np.cumsum(share) - share / 2) / share.sum()
    block = np.minimum((middle * limit).astype(np.int64), limit - 1)
    block = np.unique(block, return_inverse=True)[1]
  rank = np.empty(len(order), np.int64)
  rank[order] = block
  members: list[list[str]] = [[] for _ in range(int(block.max(initial=-1)) + 1)]
  for number, into in zip(order.tolist(), block.tolist(), strict=True):
    members[into].append(layers.names[number])
  return Layers(tuple(map(_block_name, members)), rank[layers.layer_of])


def _block_name(members: list[str]) -> str:
  if len(members) == 1:
    return members[0]
  return f"{members[0]}{BETWEEN}{members[-1]}"


def _scopes(name: str) -> tuple[str, ...]:
  """`gradient_tape/model/step_3/lstm/MatMul` -> ("model", "lstm")."""
  parts = _GRADIENT.sub("", name).split("/")[:-1]
  return tuple(part for part in parts if not _STEP.fullmatch(part))


def _as_called(scopes: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
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


def _model_scope(
  scopes: Sequence[tuple[str, ...]], weight: np.ndarray
) -> tuple[str, ...]:
  """The scopes at the front of names that are the model's own."""
  head: tuple[str, ...] = ()
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
    inside = [
      (scope, weighs)
      for scope, weighs in inside
      if len(scope) > len(head) and scope[len(head)] == heaviest
    ]
    head = *head, heaviest
  return head


def _label(scope: tuple[str, ...], head: tuple[str, ...]) -> str:
  if scope[: len(head)] == head and len(scope) > len(head):
    return scope[len(head)]
  return scope[0] if scope and scope[0] not in head else OTHER
