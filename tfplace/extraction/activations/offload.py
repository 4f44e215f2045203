"""Identity ops that hold activations until the backward pass reads them.

Where the placement puts such an op on the host, the activation is sent there as
soon as it is computed. The op waits for a gradient that is computed shortly
before the activation is read, so that it comes back in time (prefetching, as in
Rhu et al., vDNN, 2016). It copies nothing and changes no numbers.
"""

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.core.offload import OffloadConfig, offload_name
from tfplace.extraction.activations.dataflow import Dataflow, tensor_bytes

_NO_ACTIVATIONS = frozenset(("Const", "Placeholder", "ReadVariableOp", "NoOp"))


@dataclasses.dataclass(frozen=True)
class WorthConfig:
  """Thresholds for activations worth offloading, chosen by trial.

  The worth of an activation is its bytes times the number of ops between its
  last reader in the forward and its first in the backward pass.

  Attributes:
    share: share of the worth of all activations that is covered.
    most: largest number of activations.
    least_bytes: least size of an activation.
    prefetch: how much is on its way back at once, in multiples of the
      activation that is needed next.
  """

  share: float = 0.97
  most: int = 256
  least_bytes: float = 1024.0
  prefetch: float = 8.0


@dataclasses.dataclass(frozen=True)
class Activation:
  """Tensor of the forward pass that the backward pass reads.

  Attributes:
    tensor: the tensor.
    num_bytes: its size; an unknown dimension counts as 1,024.
    readers: positions of its readers in the backward pass, first one first.
    worth: see `WorthConfig`.
  """

  tensor: tf.Tensor
  num_bytes: float
  readers: tuple[int, ...]
  worth: float


def offload(
  graph: Any, config: OffloadConfig, limits: WorthConfig | None = None
) -> int:
  """Lets activations of a traced training step wait on other devices.

  Returns:
    The number of identity ops, one per activation.
  """
  limits = limits or WorthConfig()
  flow = Dataflow(graph)
  rank = _execution_rank(flow)
  found = list(_activations(flow, rank, limits))
  if config.tensors:
    wanted = set(config.tensors)
    found = [a for a in found if _key(a.tensor) in wanted]
  else:
    found = _worth_it(found, limits)
  found.sort(key=lambda a: rank[a.readers[0]])
  triggers = list(_triggers(flow, rank, found, limits))
  held = [(a, t) for a, t in zip(found, triggers, strict=True) if t is not None]
  for activation, trigger in held:
    _hold(graph, flow, activation, trigger)
  return len(held)


def _key(tensor: tf.Tensor) -> tuple[str, int]:
  return tensor.op.name, tensor.value_index


def _execution_rank(flow: Dataflow) -> np.ndarray:
  """Returns [num_ops] positions in an order in which the ops can run.

  Ops run in order of creation, except that clones, which are created last, run
  when nothing else can.
  """
  missing = np.zeros(len(flow.ops), int)
  for readers in flow.readers:
    for reader in readers:
      missing[reader] += 1
  ready = np.flatnonzero(missing == 0).tolist()
  rank, count = np.zeros(len(flow.ops), int), 0
  while ready:
    op = heapq.heappop(ready)
    rank[op] = count
    count += 1
    for reader in flow.readers[op]:
      missing[reader] -= 1
      if not missing[reader]:
        heapq.heappush(ready, reader)
  return rank


def _activations(
  flow: Dataflow, rank: np.ndarray, limits: WorthConfig
) -> Iterator[Activation]:
  for op in flow.ops[: flow.first_backward]:
    if op.type in _NO_ACTIVATIONS:
      continue
    for tensor in op.outputs:
      num_bytes = tensor_bytes(tensor)
      if not limits.least_bytes <= num_bytes < np.inf:
        continue
      readers = sorted(flow.reads_backward(tensor), key=lambda i: rank[i])
      if not readers:
        continue
      others = set(flow.consumers(tensor)).difference(readers)
      last = max((rank[i] for i in others), default=rank[flow.producer(tensor)])
      distance = float(rank[readers[0]] - last)
      if distance > 0:
        worth = num_bytes * distance
        yield Activation(tensor, num_bytes, tuple(readers), worth)


def _worth_it(
  found: Sequence[Activation], limits: WorthConfig
) -> list[Activation]:
  ranked = sorted(found, key=lambda activation: -activation.worth)
  total = np.cumsum([activation.worth for activation in ranked])
  if not len(total):
    return []
  enough = 1 + int(np.searchsorted(total, limits.share * total[-1]))
  return ranked[: min(enough, limits.most)]


def _triggers(
  flow: Dataflow,
  rank: np.ndarray,
  found: Sequence[Activation],
  limits: WorthConfig,
) -> Iterator[int | None]:
  """Yields, per activation, the gradient after which it comes back, or None.

  The activations are in the order of their first readers. The gradient is one
  that the first reader depends on, so the rewritten graph has no cycle.
  """
  for i, activation in enumerate(found):
    ahead, before = 0.0, i
    while before and ahead < limits.prefetch * activation.num_bytes:
      before -= 1
      ahead += found[before].num_bytes
    latest = rank[found[before].readers[0]] if before < i else -1
    yield _gradient_before(flow, rank, activation.readers[0], latest)


def _gradient_before(
  flow: Dataflow, rank: np.ndarray, reader: int, latest: int
) -> int | None:
  """Follows gradients backward from a reader until one ranks that early."""
  found, op = None, reader
  while True:
    before = [
      i
      for i in flow.producers(op)
      if i in flow.gradients and i >= flow.first_backward
    ]
    if not before:
      return found
    op = max(before, key=lambda i: rank[i])
    found = op
    if rank[op] <= latest:
      return found


def _hold(
  graph: Any, flow: Dataflow, activation: Activation, trigger: int
) -> None:
  """Adds the op of an activation, and makes the backward pass read it."""
  tensor = activation.tensor
  with graph.control_dependencies(None):
    held = graph.create_op(
      "Identity",
      [tensor],
      [tensor.dtype],
      name=offload_name(*_key(tensor)) + "/",  # As it is, without a number.
    )
  held._add_control_input(flow.ops[trigger])
  for reader in activation.readers:
    op = flow.ops[reader]
    for i, read in enumerate(op.inputs):
      if read is tensor or read.name == tensor.name:
        op._update_input(i, held.outputs[0])
