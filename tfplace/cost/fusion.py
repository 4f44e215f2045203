"""Kernels that XLA makes of the ops of a unit.

The rules are a summary of XLA's GPU fusion passes (`xla/service/gpu`):

- Matrix products and convolutions are library calls.
- Every other op is part of a loop over the elements of what is written. An
  elementwise op, broadcast, cast, slice or transpose is computed inside each
  loop that needs it. It is written only if the unit returns it or a library
  call reads it.
- A reduction, pooling, gather or scatter is written; what it reads is computed
  inside its loop. A slice or gather reads as much as it returns, and what reads
  a cast reads the smaller of both types.
- A tensor is written, too, where a later kernel would have to read more than
  twice its size to compute it again, or a kernel would read too many tensors.
- Loops that are equally far from the inputs and read the same largest tensor
  are one kernel.
- An elementwise op of one product and small tensors is the product's epilogue.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfplace.cost.kernels.ops import FREE
from tfplace.graph.op_graph import OpGraph
from tfplace.variants.units.forming import inlined_ops

_PRODUCTS = frozenset(
  {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
)
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2d")  # prefixes of types
_WRITTEN = frozenset({
  "All", "Any", "ArgMax", "ArgMin", "AvgPool", "AvgPoolGrad", "BiasAddGrad",
  "Cumprod", "Cumsum", "Gather",
  "GatherNd", "GatherV2", "InTopKV2", "L2Loss", "LogSoftmax", "Max", "MaxPool",
  "MaxPoolGrad", "Mean", "Min", "Prod", "ScatterNd", "SegmentSum", "Softmax",
  "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "Sum",
  "TensorScatterAdd", "TensorScatterUpdate", "TopKV2", "UnsortedSegmentSum",
})  # fmt: skip
# XLA expands them to reductions, which are the outputs after the first, and an
# elementwise op (`xla/service/batchnorm_expander.h`).
_NORMALIZED = frozenset({"FusedBatchNormGradV3", "FusedBatchNormV3"})
_PARTS = ("Gather", "Slice", "Split", "StridedSlice", "Unpack")  # prefixes
# `MaxOperandsAndOutputsPerFusion` in `xla/service/gpu/gpu_fusible.h`.
_MOST_READS = 96
_SMALL = 64  # An epilogue's other operands are smaller than its result by this.


@dataclasses.dataclass
class Loop:
  """A fused kernel.

  Attributes:
    reads: tensors that it reads, as positions in `OpGraph.output_bytes`, and
      the bytes of each.
    written_bytes: bytes that it writes.
  """

  reads: dict[int, float] = dataclasses.field(default_factory=dict)
  written_bytes: float = 0.0

  @property
  def num_bytes(self) -> float:
    """Bytes that it moves."""
    return self.written_bytes + sum(self.reads.values())


@dataclasses.dataclass(frozen=True)
class Unit:
  """Kernels of one unit; tensors are positions in `OpGraph.output_bytes`.

  Attributes:
    ops: positions of its ops, in topological order.
    outputs: tensors that ops outside read.
    calls: positions of its library calls.
    loops: its other kernels.
    temp_bytes: peak of the tensors that live inside the unit.
  """

  ops: Sequence[int]
  outputs: Sequence[int]
  calls: Sequence[int]
  loops: Sequence[Loop]
  temp_bytes: float


class Fusion:
  """XLA's fusion of the ops inside units.

  Args:
    unit_of: [num_ops] unit of each op or -1, as `units.form` returns it.
  """

  def __init__(self, graph: OpGraph, unit_of: np.ndarray) -> None:
    self._graph, self._unit_of = graph, unit_of
    self.inlined = inlined_ops(graph)
    self._in, self._out = graph.in_csr, graph.out_csr
    self._moved = self._moved_bytes()

  def unit(self, ops: Sequence[int]) -> Unit:
    """Finds the kernels of a unit, whose ops are in topological order."""
    outputs = [
      t for op in ops for t in self._tensors(op) if self._leaves(op, t)
    ]
    kernels = _Kernels(self._moved)
    for at, op in enumerate(ops):
      kind, results = self._graph.types[op], self._tensors(op)
      inputs = self._inputs(op)
      read = kernels.read(inputs, kind, results)
      if kind in _NORMALIZED:
        results, statistics = results[:1], results[1:]
        if self._readers(op, statistics):
          kernels.write(at, statistics, read, None)
          read = kernels.read([*inputs, *statistics], kind, results)
      if kind in FREE or not (_is_call(kind) or self._is_written(op, results)):
        kernels.compute(at, results, read)
        continue
      call = op if _is_call(kind) else self._product_before(op, read, kernels)
      kernels.write(at, results, read, call)
    temp = self._peak(ops, kernels.last_read, set(outputs))
    loops = list(kernels.loops.values())
    calls = list(dict.fromkeys(kernels.call_of.values()))
    return Unit(ops, outputs, calls, loops, temp)

  def _moved_bytes(self) -> np.ndarray:
    """Returns the bytes that a kernel moves to read each tensor.

    What reads a cast to a larger type reads the smaller tensor and casts, too.
    """
    graph = self._graph
    moved = graph.output_bytes.copy()
    for op in graph.topological_order.tolist():
      if graph.types[op] == "Cast":
        (result,) = self._tensors(op)
        read = [moved[t] for t in self._inputs(op)]
        moved[result] = min([moved[result], *read])
    return moved

  def _inputs(self, op: int) -> list[int]:
    """Lists the tensors that an op reads, without inlined constants."""
    graph, (offsets, edges) = self._graph, self._in
    return [
      int(graph.output_offsets[graph.edge_src[e]] + graph.edge_output[e])
      for e in edges[offsets[op] : offsets[op + 1]]
      if graph.edge_output[e] >= 0 and not self.inlined[graph.edge_src[e]]
    ]

  def _tensors(self, op: int) -> range:
    return range(*self._graph.output_offsets[op : op + 2].tolist())

  def _readers(self, op: int, tensors: range) -> list[int]:
    """Lists the ops that read some of an op's tensors."""
    graph, (offsets, edges) = self._graph, self._out
    out = edges[offsets[op] : offsets[op + 1]]
    tensor = graph.output_offsets[op] + graph.edge_output[out]
    is_read = (tensor >= tensors.start) & (tensor < tensors.stop)
    is_read &= graph.edge_output[out] >= 0
    return graph.edge_dst[out[is_read]].tolist()

  def _leaves(self, op: int, tensor: int) -> bool:
    here = self._unit_of[op]
    readers = self._readers(op, range(tensor, tensor + 1))
    return any(self._unit_of[reader] != here for reader in readers)

  def _is_written(self, op: int, results: range) -> bool:
    """Returns whether results of an op without a call are in memory."""
    if self._graph.types[op] in _WRITTEN:
      return True
    here, stack = self._unit_of[op], self._readers(op, results)
    if not stack:
      return True
    while stack:
      reader = stack.pop()
      kind = self._graph.types[reader]
      if self._unit_of[reader] != here or _is_call(kind):
        return True
      if kind in FREE:  # It hands on the same buffer.
        stack += self._readers(reader, self._tensors(reader))
    return False

  def _product_before(
    self, op: int, read: Iterable[int], kernels: "_Kernels"
  ) -> int | None:
    """Returns the product of which an op is the epilogue, or None."""
    graph, sizes = self._graph, self._graph.output_bytes
    if graph.types[op] in _WRITTEN:
      return None
    size = float(sizes[[*self._tensors(op)]].sum())
    large = [t for t in read if sizes[t] * _SMALL > size]
    if len(large) != 1 or sizes[large[0]] != size:
      return None
    call = kernels.call_of.get(large[0])
    return call if call is not None and graph.types[call] in _PRODUCTS else None

  def _peak(
    self,
    ops: Sequence[int],
    last_read: Mapping[int, int],
    outputs: set[int],
  ) -> float:
    """Returns the peak bytes of written tensors that do not leave the unit."""
    sizes = self._graph.output_bytes
    freed = np.zeros(len(ops) + 1)
    alive = peak = 0.0
    for at, op in enumerate(ops):
      for tensor in self._tensors(op):
        if tensor in last_read and tensor not in outputs:
          alive += float(sizes[tensor])
          freed[last_read[tensor]] += float(sizes[tensor])
      peak = max(peak, alive)
      alive -= float(freed[at])
    return peak


class _Kernels:
  """Kernels of a unit, op by op; tensors are positions in `sizes`.

  Args:
    sizes: bytes of each tensor.

  Attributes:
    loops: (kernels before it, largest tensor that it reads) -> loop.
    call_of: result of a library call or of its epilogue -> the op called.
    last_read: tensor -> position of the last op that reads it.
  """

  def __init__(self, sizes: np.ndarray) -> None:
    self.loops: dict[tuple[int, int], Loop] = {}
    self.call_of: dict[int, int] = {}
    self.last_read: dict[int, int] = {}
    self._sizes = sizes
    # Tensor that is not written -> position of its op, and the bytes that its
    # computation reads of each tensor in memory.
    self._computed: dict[int, tuple[int, dict[int, float]]] = {}
    self._depth: dict[int, int] = {}  # of written tensors: kernels so far

  def read(
    self, inputs: Sequence[int], kind: str, results: Iterable[int]
  ) -> dict[int, float]:
    """Returns the tensors in memory that an op reads, and their bytes.

    What is not worth computing again is written first.
    """
    level = max(map(self._level, inputs), default=0)
    for tensor in inputs:
      read_bytes = sum(self._sources(tensor).values())
      is_early = self._level(tensor) < level
      if is_early and read_bytes > 2 * self._sizes[tensor]:
        self._materialize(tensor)
    read_bytes_of = self._union(inputs)
    if len(read_bytes_of) > _MOST_READS:
      for tensor in inputs:
        if len(self._sources(tensor)) > 1:
          self._materialize(tensor)
      read_bytes_of = self._union(inputs)
    if kind.startswith(_PARTS):
      largest = max((float(self._sizes[t]) for t in inputs), default=0.0)
      share = sum(float(self._sizes[t]) for t in results) / max(largest, 1.0)
      read_bytes_of = {
        t: min(share, 1.0) * size for t, size in read_bytes_of.items()
      }
    return read_bytes_of

  def compute(
    self, at: int, results: Sequence[int], read: Mapping[int, float]
  ) -> None:
    """Adds tensors that are computed where they are read."""
    total = max(sum(float(self._sizes[t]) for t in results), 1.0)
    for tensor in results:
      share = float(self._sizes[tensor]) / total if len(results) > 1 else 1.0
      sources = {source: share * size for source, size in read.items()}
      self._computed[tensor] = at, sources

  def write(
    self,
    at: int,
    results: Sequence[int],
    read: Mapping[int, float],
    call: int | None,
  ) -> None:
    """Adds tensors that a library call or a loop writes."""
    self.last_read.update((t, max(at, self.last_read.get(t, at))) for t in read)
    level = max(map(self._level, read), default=0)
    self._depth.update(dict.fromkeys(results, level + 1))
    if call is not None:
      self.call_of.update(dict.fromkeys(results, call))
      return
    largest = max(read, key=self._sizes.__getitem__, default=-1)
    loop = self.loops.setdefault((level, largest), Loop())
    for tensor, size in read.items():
      known = loop.reads.get(tensor, 0.0)
      loop.reads[tensor] = min(known + size, float(self._sizes[tensor]))
    loop.written_bytes += float(self._sizes[[*results]].sum())

  def _sources(self, tensor: int) -> Mapping[int, float]:
    if tensor in self._computed:
      return self._computed[tensor][1]
    return {tensor: float(self._sizes[tensor])}

  def _level(self, tensor: int) -> int:
    if tensor in self._computed:
      return max(
        (self._depth.get(t, 0) for t in self._sources(tensor)), default=0
      )
    return self._depth.get(tensor, 0)

  def _union(self, inputs: Iterable[int]) -> dict[int, float]:
    total_bytes: dict[int, float] = {}
    for tensor in inputs:
      for source, size in self._sources(tensor).items():
        total = total_bytes.get(source, 0.0) + size
        total_bytes[source] = min(total, float(self._sizes[source]))
    return total_bytes

  def _materialize(self, tensor: int) -> None:
    """Writes a tensor that was to be computed where it is read."""
    at, read = self._computed.pop(tensor)
    self.write(at, [tensor], read, None)


def _is_call(kind: str) -> bool:
  return kind in _PRODUCTS or kind.startswith(_CONVOLUTIONS)
