"""The dataflow graph to place: ops, their costs, and their edges.

`OpGraph` is plain NumPy data without TensorFlow. It knows no devices; `Problem`
combines it with a `Cluster`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import FormatError, TfplaceError, shown
from tfplace.graph import graph_checks
from tfplace.graph.argument_checks import check_number, whole_number
from tfplace.graph.csr import csr, offsets_of, topological_order

CONTROL_OUTPUT = -1  # Output index of a control edge, a message of 0 bytes.


XLA = "xla"  # Value of "compile" in `OpGraph.extra`: the graph is of units.
UNIT = "Unit"  # Type of a unit, see `cost.unit_costs`.
UNIT_SUFFIX = "/unit"  # A unit is named after its first op, with this suffix.
# In `OpGraph.op_extra`: kinds on which an op of a measured step was not timed.
ESTIMATED = "estimated"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OpGraph:
  """An immutable dataflow graph with costs.

  Ops are numbered 0 .. num_ops-1 in file order ("position"), edges 0 ..
  num_edges-1. Byte counts are doubles, exact up to 2**53. All values are
  checked here, once, wherever they come from.

  Attributes:
    name: name of the graph.
    names: [num_ops] unique op names.
    types: [num_ops] op types such as "MatMul".
    time_us: device kind -> [num_ops] float64 microseconds; NaN where a device
      of that kind cannot run the op.
    output_offsets: [num_ops + 1] int64; the outputs of op i are entries
      `output_offsets[i]:output_offsets[i + 1]` of `output_bytes`.
    output_bytes: [num_outputs] float64.
    persistent_bytes: [num_ops] float64, held for the whole step (variables).
    temp_bytes: [num_ops] float64, held while the op runs.
    colocation: [num_ops] int32 index into `colocation_names`, -1 if the op is
      free. Ops with the same index share a device.
    colocation_names: names of the colocation groups.
    layer: [num_ops] int32 index into `layer_names`, -1 if the op is in no layer
      or its layer is unknown.
    layer_names: layer paths as the model's author named them, starting with the
      model: "net/encoder/dense".
    microbatch: [num_ops] int32 microbatch of each op, -1 if all microbatches
      share the op or the step is not microbatched.
    edge_src: [num_edges] int32 producer.
    edge_output: [num_edges] int32 output of the producer, -1 for control.
    edge_dst: [num_edges] int32 consumer.
    peak_us: device kind -> [num_ops] float64 microseconds that the floating-
      point operations of each op take at the peak of the device's data sheet; 0
      where they are not counted. Kinds without a known peak are absent.
    extra: unknown keys of the file, kept on a round trip.
    op_extra: position -> unknown keys of that op.
    edge_extra: edge -> unknown keys of that edge.

  Raises:
    FormatError: an array has another type or shape, a value is negative, not
      finite or out of range, a name is empty or occurs twice, or the edges
      form a cycle; names the op or edge and the value.
  """

  name: str
  names: tuple[str, ...]
  types: tuple[str, ...]
  time_us: Mapping[str, np.ndarray]
  output_offsets: np.ndarray
  output_bytes: np.ndarray
  persistent_bytes: np.ndarray
  temp_bytes: np.ndarray
  colocation: np.ndarray
  colocation_names: tuple[str, ...]
  layer: np.ndarray
  layer_names: tuple[str, ...]
  microbatch: np.ndarray
  edge_src: np.ndarray
  edge_output: np.ndarray
  edge_dst: np.ndarray
  peak_us: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  op_extra: Mapping[int, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  edge_extra: Mapping[int, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )

  def __post_init__(self) -> None:
    fields = (getattr(self, f.name) for f in dataclasses.fields(self))
    arrays = [f for f in fields if isinstance(f, np.ndarray)]
    for array in (*arrays, *self.time_us.values(), *self.peak_us.values()):
      array.setflags(write=False)
    graph_checks.check_graph(self)

  def __repr__(self) -> str:
    return f"OpGraph({self.name!r}, {self.num_ops} ops, {self.num_edges} edges)"

  @property
  def num_ops(self) -> int:
    return len(self.names)

  @property
  def num_edges(self) -> int:
    return len(self.edge_src)

  @functools.cached_property
  def members(self) -> Mapping[str, tuple[str, ...]]:
    """Traced ops by unit that XLA compiles; see `cost.unit_costs`."""
    return {
      self.names[op]: tuple(extra["members"])
      for op, extra in self.op_extra.items()
      if isinstance(extra.get("members"), list)
    }

  @property
  def traced_names(self) -> tuple[str, ...]:
    """Names of the ops, with the members of units in their place."""
    members = self.members
    return tuple(
      one for name in self.names for one in members.get(name, (name,))
    )

  @property
  def kinds(self) -> tuple[str, ...]:
    """Device kinds that at least one op has a time for."""
    return tuple(self.time_us)

  @property
  def num_microbatches(self) -> int:
    """Number of microbatches; 1 if the step is not microbatched."""
    return max(1, 1 + int(self.microbatch.max(initial=-1)))

  @property
  def layer_paths(self) -> list[str | None]:
    """[num_ops] layer path of each op, None if unknown."""
    names = (*self.layer_names, None)
    return [names[i] for i in self.layer.tolist()]  # Index -1 selects the last.

  @functools.cached_property
  def index(self) -> Mapping[str, int]:
    """Op name -> position."""
    return {name: i for i, name in enumerate(self.names)}

  @functools.cached_property
  def out_csr(self) -> tuple[np.ndarray, np.ndarray]:
    """Edges by producer: offsets [num_ops + 1], edge numbers [num_edges].

    The edges of a producer are ordered by (output, consumer).
    """
    return self._csr(self.edge_src, self.edge_output, self.edge_dst)

  @functools.cached_property
  def in_csr(self) -> tuple[np.ndarray, np.ndarray]:
    """Edges by consumer: offsets [num_ops + 1], edge numbers [num_edges]."""
    return self._csr(self.edge_dst, self.edge_src, self.edge_output)

  def _csr(self, *keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    offsets, edges = csr(keys[0], self.num_ops, *keys[1:])
    return offsets, edges.astype(np.int32)

  @functools.cached_property
  def edge_bytes(self) -> np.ndarray:
    """[num_edges] float64 bytes of the tensor on each edge, 0 on control."""
    is_data = self.edge_output >= 0
    at = self.output_offsets[self.edge_src] + np.maximum(self.edge_output, 0)
    result = np.zeros(self.num_edges)
    result[is_data] = self.output_bytes[at[is_data]]
    return result

  @functools.cached_property
  def op_output_bytes(self) -> np.ndarray:
    """[num_ops] float64 total output bytes of each op."""
    sums = np.concatenate(([0.0], np.cumsum(self.output_bytes)))
    return sums[self.output_offsets[1:]] - sums[self.output_offsets[:-1]]

  @functools.cached_property
  def topological_order(self) -> np.ndarray:
    """[num_ops] int32 positions, producers first."""
    offsets, edges = self.out_csr
    return topological_order(offsets, self.edge_dst[edges])

  @functools.cached_property
  def topological_position(self) -> np.ndarray:
    """[num_ops] int64 index of each op in `topological_order`."""
    position = np.empty(self.num_ops, np.int64)
    position[self.topological_order] = np.arange(self.num_ops)
    return position


@dataclasses.dataclass(frozen=True)
class OpSpec:
  """One op for `build_graph`; the fields correspond to those of `OpGraph`."""

  name: str
  type: str
  time_us: Mapping[str, float]
  output_bytes: Sequence[float] = ()
  persistent_bytes: float = 0.0
  temp_bytes: float = 0.0
  colocation: str | None = None
  layer: str | None = None
  microbatch: int | None = None
  peak_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build_graph(
  name: str,
  ops: Sequence[OpSpec],
  edges: Sequence[tuple[int, int, int]],
  **extras: Any,
) -> OpGraph:
  """Builds an `OpGraph` from op specs and edges.

  Args:
    ops: the ops, in position order.
    edges: (producer, output or -1, consumer) by position, in file order,
      without repeated edges.
    **extras: `extra` and `edge_extra` of `OpGraph`.

  Raises:
    FormatError: a value is no number, an edge is not three integers, or
      `OpGraph` refuses the graph.
  """
  kinds = dict.fromkeys(kind for op in ops for kind in op.time_us)
  nan = float("nan")
  colocation, groups = _numbered([op.colocation for op in ops])
  layer, layers = _numbered([op.layer for op in ops])
  counts = [len(op.output_bytes) for op in ops]
  table = _edge_table(edges)
  return OpGraph(
    name=name,
    names=tuple(op.name for op in ops),
    types=tuple(op.type for op in ops),
    time_us={
      kind: _floats("time_us", [op.time_us.get(kind, nan) for op in ops])
      for kind in kinds
    },
    output_offsets=offsets_of(np.array(counts, np.int64)),
    output_bytes=_floats(
      "output_bytes", [size for op in ops for size in op.output_bytes]
    ),
    persistent_bytes=_floats(
      "persistent_bytes", [op.persistent_bytes for op in ops]
    ),
    temp_bytes=_floats("temp_bytes", [op.temp_bytes for op in ops]),
    colocation=colocation,
    colocation_names=groups,
    layer=layer,
    layer_names=layers,
    microbatch=_microbatches(ops),
    edge_src=table[:, 0].copy(),
    edge_output=table[:, 1].copy(),
    edge_dst=table[:, 2].copy(),
    peak_us={
      kind: _floats("peak_us", [op.peak_us.get(kind, 0.0) for op in ops])
      for kind in dict.fromkeys(kind for op in ops for kind in op.peak_us)
    },
    op_extra={i: op.extra for i, op in enumerate(ops) if op.extra},
    **extras,
  )


def _microbatches(ops: Sequence[OpSpec]) -> np.ndarray:
  given = [-1 if op.microbatch is None else op.microbatch for op in ops]
  limit = graph_checks.MAX_MICROBATCHES
  for i, value in enumerate(given):
    number = whole_number(value)
    if number is None or not -1 <= number < limit:
      raise FormatError(
        f"ops[{i}] {ops[i].name!r}: microbatch: {shown(value)} is not a whole"
        f" number from 0 to {limit - 1}",
        op=ops[i].name,
      )
  return np.array(given, np.int32)


def _floats(name: str, values: list[Any]) -> np.ndarray:
  try:
    given = np.array(values)
    if given.ndim != 1 or given.dtype.kind not in "fiu":
      for value in values:
        check_number(f"{name} of an op", value)  # Large integers are objects.
    return given.astype(np.float64)
  except (OverflowError, TypeError, ValueError, TfplaceError) as error:
    raise FormatError(f"{name} of an op is no number: {error}") from error


def _edge_table(edges: Sequence[tuple[int, int, int]]) -> np.ndarray:
  try:
    return np.array(edges, np.int32).reshape(-1, 3)
  except (OverflowError, TypeError, ValueError) as error:
    whole = int, np.integer
    bad = (
      edge
      for edge in edges
      if [isinstance(number, whole) for number in edge] != [True] * 3
    )
    raise FormatError(
      "an edge is (producer, output, consumer), three integers: ops"
      f" are positions, not names: {shown(next(bad, edges))}"
    ) from error


def _numbered(
  names: Sequence[str | None],
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Numbers the distinct names; returns an index per name (-1 for None)."""
  distinct = tuple(dict.fromkeys(name for name in names if name is not None))
  index: dict[str | None, int] = {name: i for i, name in enumerate(distinct)}
  return np.array([index.get(name, -1) for name in names], np.int32), distinct
