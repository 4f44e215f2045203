"""Gradients of `tf.custom_gradient`s, traced beside the forward pass.

Ops have gradients that keep examples apart if the op does. A custom gradient is
any function, so it is followed by itself.
"""

import dataclasses

import tensorflow as tf

_ATTRIBUTE = "_gradient_op_type"
_PREFIX = b"CustomGradient"


@dataclasses.dataclass(frozen=True)
class CustomGradient:
  """Gradient of one op.

  Attributes:
    op: the op.
    upstream: name of a placeholder -> name of the output of the op whose
      gradient it stands for.
    gradients: gradients of those inputs that have one.
  """

  op: tf.Operation
  upstream: dict[str, str]
  gradients: tuple[tf.Tensor, ...]


def trace(graph: tf.Graph) -> list[CustomGradient]:
  """Adds the custom gradients of a graph to it.

  Gradients of functions that loops or branches call are left out, as are those
  that cannot be computed here.
  """
  result = []
  for op in graph.get_operations():
    if op.type != "IdentityN" or not _is_custom(op):
      continue
    outputs = [t for t in op.outputs if t.dtype.is_floating]
    given = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in outputs]
    inputs = [*op.inputs]
    try:
      found = tf.gradients(outputs, inputs, given, stop_gradients=inputs)
    except Exception:
      continue
    upstream = {a.name: b.name for a, b in zip(given, outputs, strict=True)}
    gradients = [g for g in found if isinstance(g, tf.Tensor)]
    result.append(CustomGradient(op, upstream, tuple(gradients)))
  return result


def _is_custom(op: tf.Operation) -> bool:
  attributes = op.node_def.attr
  return _ATTRIBUTE in attributes and attributes[_ATTRIBUTE].s.startswith(
    _PREFIX
  )
