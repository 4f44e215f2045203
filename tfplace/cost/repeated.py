"""Ops of a split step that cost what an op of another microbatch does.

Microbatches of one size are copies of one graph. What their ops cost depends
on type, attributes and inputs, so it is estimated for one of them.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from tfplace.core.microbatches import microbatch_of, name_in_whole
from tfplace.cost import sizes
from tfplace.extraction import nodes

Specs = Mapping[str, tuple[sizes.TensorSpec, ...]]


def repeated_ops(
  graph_def: tf.compat.v1.GraphDef,
  graph: tf.Graph,
  specs: Specs,
  unpriced: tuple[str, ...],
  is_static: Callable[[tf.Tensor], bool],
) -> dict[str, str]:
  """Op of a microbatch -> the op of another one that is the same.

  The same are ops of one name but for the microbatch, one type, one set of
  attributes and one of outputs, whose inputs are the same tensors or outputs of
  ops that are the same; or, at the edge, of the same shapes without a value.

  Args:
    graph_def: flat graph.
    graph: the same, imported: producers come first.
    specs: op name -> its outputs.
    unpriced: attributes that cost nothing.
    is_static: whether a tensor's value is known, and may decide a cost.
  """
  by_name = nodes.by_name(graph_def)
  first: dict[str, str] = {}
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
    whole = name_in_whole(op.name)
    original = first.setdefault(whole, op.name)
    if original != op.name and is_same(by_name[op.name], by_name[original]):
      result[op.name] = original
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
