"""Clones of forward ops that the backward pass reads instead of activations.

The rewrite happens in the graph under construction, so the step that is planned
and the step that runs are the same. A clone waits for the first gradient that
arrives at its segment, as in `tf.recompute_grad` and Grappler's memory
optimizer. Constants, variables and results of stateful ops (random seeds) are
read, not cloned, so the step computes the same numbers.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfplace.extraction.layers import LayerRecorder
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.paths import reached
from tfplace.graph.recompute import SCOPE
from tfplace.variants.recompute.dataflow import Dataflow
from tfplace.variants.recompute.segments import Segment, find_segments


@contextlib.contextmanager
def applied(model: Any, config: VariantConfig) -> Iterator[None]:
  """Rewrites the training step that is traced inside the context.

  An ExtractionError says which name of the config matches no layer.
  """
  if config.recompute.is_none:
    yield
    return
  graph = tf.compat.v1.get_default_graph()
  recorder = LayerRecorder(graph, model)
  with graph.device(recorder):
    yield
  flow = Dataflow(graph)
  segments = find_segments(flow, config.recompute, recorder.layers, model)
  recompute(graph, flow, segments)


def rewritten(
  model: Any, config: VariantConfig, step: Callable[[Any], Any]
) -> Callable[[Any], Any]:
  """Returns a rewritten training step; the arguments are those of `applied`."""

  def rewritten_step(data: Any) -> Any:
    with applied(model, config):
      return step(data)

  return rewritten_step


def recompute(graph: Any, flow: Dataflow, segments: Sequence[Segment]) -> int:
  """Clones segments, and makes the backward pass read the clones.

  A segment has no clones if the backward pass reads nothing of it, or if no
  gradient arrives at it. Returns the number of clones.
  """
  rewriter = _Rewriter(graph, flow, segments)
  return sum(map(rewriter.clone, reversed(range(len(segments)))))


class _Rewriter:
  """Rewrites the segments of a step one by one, the last one first."""

  def __init__(
    self, graph: Any, flow: Dataflow, segments: Sequence[Segment]
  ) -> None:
    self._graph, self._flow, self._segments = graph, flow, segments
    self._owner = {op: i for i, ops in enumerate(segments) for op in ops}

  def clone(self, number: int) -> int:
    """Clones a segment, and returns the number of clones."""
    flow, segment = self._flow, self._segments[number]
    reads = [
      tensor
      for op in sorted(segment)
      for tensor in flow.ops[op].outputs
      if flow.reads_backward(tensor) and not self._is_kept(tensor)
    ]

    def inside(position: int) -> list[int]:
      return [
        producer
        for tensor in flow.ops[position].inputs
        if (producer := flow.producer(tensor)) in segment
        and not self._is_kept(tensor)
      ]

    ops = sorted(reached(map(flow.producer, reads), inside))
    readers = {r for tensor in reads for r in flow.reads_backward(tensor)}
    gradient = _first_gradient(flow, segment, readers) if ops else None
    if gradient is None:
      return 0
    clones = self._import(ops, f"{SCOPE}{number}")
    # The backward pass reads the clones, and they wait for it.
    names = {tensor.name for tensor in reads}
    for reader in sorted(readers):
      op = flow.ops[reader]
      for i, tensor in enumerate(op.inputs):
        if tensor.name in names:
          op._update_input(i, clones[tensor.name])
    made = {tensor.op.name: tensor.op for tensor in clones.values()}
    for clone in made.values():
      if not any(tensor.op.name in made for tensor in clone.inputs):
        clone._add_control_input(flow.ops[gradient])
    inputs = {flow.producer(t) for op in ops for t in flow.ops[op].inputs}
    flow.add_node(made, {gradient, *inputs}, readers)
    return len(ops)

  def _is_kept(self, tensor: tf.Tensor) -> bool:
    """Returns whether another segment starts from the tensor."""
    owner = self._owner
    number = owner[self._flow.producer(tensor)]
    readers = self._flow.consumers(tensor)
    return any(owner.get(reader, number) != number for reader in readers)

  def _import(self, ops: Sequence[int], scope: str) -> dict[str, tf.Tensor]:
    """Adds clones; returns the tensor of a clone by the tensor it repeats."""
    flow, graph, inside = self._flow, self._graph, set(ops)
    graph_def = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    outside: dict[str, tf.Tensor] = {}
    for position in ops:
      op = flow.ops[position]
      node = graph_def.node.add()
      node.CopyFrom(op.node_def)
      node.device = ""  # Device functions of the graph set it.
      for attribute in ("_class", "_gradient_op_type"):
        node.attr.pop(attribute, None)
      node.input[:] = [tensor.name for tensor in op.inputs]
      for tensor in op.inputs:
        if flow.producer(tensor) not in inside or self._is_kept(tensor):
          outside[tensor.name] = tensor
    name = f"{scope}/"
    tf.graph_util.import_graph_def(graph_def, input_map=outside, name=name)
    return {
      tensor.name: graph.get_tensor_by_name(f"{scope}/{tensor.name}")
      for position in ops
      for tensor in flow.ops[position].outputs
    }


def _first_gradient(
  flow: Dataflow, segment: Segment, readers: set[int]
) -> int | None:
  """Returns the op whose end shows that the backward pass has arrived.

  It computes a gradient from what follows the segment, and does not depend on
  the readers of the clones.
  """
  first = flow.first_backward
  behind = {
    reader
    for op in segment
    for reader in flow.readers[op]
    if reader < first and reader not in segment
  }
  arrived = flow.reachable(behind)
  late = flow.reachable(readers, first) | readers
  for ops in (readers, late):
    inputs = {
      flow.producer(tensor)
      for op in ops
      if op < len(flow.ops)
      for tensor in flow.ops[op].inputs
    }
    arrivals = (inputs & flow.gradients & arrived) - late
    if arrivals:
      return min(arrivals)
  return None
