"""Ops of microbatches that cost the same as an op of another microbatch.

Microbatches of one size are copies of one graph, so only one of each size is
estimated.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from tfplace.core.microbatches import microbatch_of, name_in_whole
from tfplace.cost import sizes
from tfplace.extraction import nodes

_MOST_SIZES = 4  # Sizes of microbatches that are told apart.

Specs = Mapping[str, tuple[sizes.TensorSpec, ...]]


def repeated_ops(
  graph_def: tf.compat.v1.GraphDef,
  graph: tf.Graph,
  specs: Specs,
  unpriced: tuple[str, ...],
  is_static: Callable[[tf.Tensor], bool],
) -> dict[str, str]:
  """Maps ops of microbatches to the equal op of another microbatch.

  Equal ops have the same name except for the microbatch, type, attributes and
  outputs. Their inputs are the same tensors, outputs of equal ops, or tensors
  of the same shapes without a static value.

  Args:
    graph: the same, imported, with producers first.
    specs: op name -> outputs.
    unpriced: attributes without effect on the cost.
    is_static: whether a tensor has a static value, which may decide a cost.
  """
  by_name = nodes.by_name(graph_def)
  first: dict[str, list[str]] = {}
  result: dict[str, str] = {}

  def is_same_input(mine: str, its: str) -> bool:
    if mine == its:
      return True
    (one, output), (other, index) = map(nodes.split_tensor, (mine, its))
    if output != index or one == other:
      return False
    if result.get(one, one) == result.get(other, other):
      return True
    spec = specs[one][output]
    if spec != specs[other][output] or spec.dtype == tf.resource:
      return False
    tensors = (graph.get_tensor_by_name(f"{n}:{index}") for n in (one, other))
    return not any(is_static(tensor) for tensor in tensors)

  def is_same(mine: nodes.NodeDef, its: nodes.NodeDef) -> bool:
    inputs = [_data(node) for node in (mine, its)]
    return (
      mine.op == its.op
      and specs[mine.name] == specs[its.name]
      and len(inputs[0]) == len(inputs[1])
      and _attributes(mine, unpriced) == _attributes(its, unpriced)
      and all(map(is_same_input, *inputs))
    )

  for op in graph.get_operations():
    if microbatch_of(op.name) is None:
      continue
    originals = first.setdefault(name_in_whole(op.name), [])
    for original in originals:
      if is_same(by_name[op.name], by_name[original]):
        result[op.name] = original
        break
    else:
      if len(originals) < _MOST_SIZES:
        originals.append(op.name)
  return result


def _data(node: nodes.NodeDef) -> list[str]:
  return [text for text in node.input if not text.startswith("^")]


def _attributes(
  node: nodes.NodeDef, unpriced: tuple[str, ...]
) -> dict[str, bytes]:
  return {
    name: node.attr[name].SerializeToString(deterministic=True)
    for name in node.attr
    if name not in unpriced
  }
