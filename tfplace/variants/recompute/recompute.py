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
  owner = {op: i for i, ops in enumerate(segments) for op in ops}
  count = 0
  for number in reversed(range(len(segments))):
    reads, ops = _needed(flow, segments[number], owner)
    if not ops:
      continue
    gradient = _first_gradient(flow, segments[number], reads)
    if gradient is None:
      continue
    clones = _import(graph, flow, ops, owner, f"{SCOPE}{number}")
    _rewire(flow, reads, ops, clones, gradient)
    count += len(ops)
  return count


def _is_kept(flow: Dataflow, tensor: tf.Tensor, owner: dict[int, int]) -> bool:
  """Returns whether another segment starts from the tensor."""
  own = owner[flow.producer(tensor)]
  return any(owner.get(reader, own) != own for reader in flow.consumers(tensor))


def _needed(
  flow: Dataflow, segment: Segment, owner: dict[int, int]
) -> tuple[list[tf.Tensor], list[int]]:
  """Returns the tensors that the backward pass reads, and the ops to clone."""
  reads = [
    tensor
    for op in sorted(segment)
    for tensor in flow.ops[op].outputs
    if flow.reads_backward(tensor) and not _is_kept(flow, tensor, owner)
  ]

  def inside(position: int) -> list[int]:
    return [
      producer
      for tensor in flow.ops[position].inputs
      if (producer := flow.producer(tensor)) in segment
      and not _is_kept(flow, tensor, owner)
    ]

  return reads, sorted(reached(map(flow.producer, reads), inside))


def _first_gradient(
  flow: Dataflow, segment: Segment, reads: Sequence[tf.Tensor]
) -> int | None:
  """Returns the op whose end shows that the backward pass has arrived.

  It computes a gradient from what follows the segment, and does not depend on
  what reads the clones.
  """
  first = flow.first_backward
  readers = {r for tensor in reads for r in flow.reads_backward(tensor)}
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


def _import(
  graph: Any,
  flow: Dataflow,
  ops: Sequence[int],
  owner: dict[int, int],
  scope: str,
) -> dict[str, tf.Tensor]:
  """Adds the clones; returns the tensor of a clone by the tensor it repeats."""
  inside = set(ops)
  graph_def = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
  outside: dict[str, tf.Tensor] = {}
  for position in ops:
    op = flow.ops[position]
    node = graph_def.node.add()
    node.CopyFrom(op.node_def)
    node.device = ""  # Device functions of the graph set it.
    for attribute in ("_class", "_gradient_op_type"):
      node.attr.pop(attribute, None)
    del node.input[:]
    for tensor in op.inputs:
      before = flow.producer(tensor)
      node.input.append(tensor.name)
      if before not in inside or _is_kept(flow, tensor, owner):
        outside[tensor.name] = tensor
  tf.graph_util.import_graph_def(graph_def, input_map=outside, name=f"{scope}/")
  return {
    tensor.name: graph.get_tensor_by_name(f"{scope}/{tensor.name}")
    for position in ops
    for tensor in flow.ops[position].outputs
  }


def _rewire(
  flow: Dataflow,
  reads: Sequence[tf.Tensor],
  ops: Sequence[int],
  clones: dict[str, tf.Tensor],
  gradient: int,
) -> None:
  """Lets the backward pass read the clones, and the clones wait for it."""
  readers = {r for tensor in reads for r in flow.reads_backward(tensor)}
  names = {tensor.name: tensor for tensor in reads}
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
