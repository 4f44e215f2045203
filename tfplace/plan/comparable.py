"""Form of a step in which its numbers can be compared with another step's.

Random ops return a constant, because two steps draw in different orders.
float16 and bfloat16 become float32: rounded to 11 or 8 bits, a microbatched
step differs from the whole one by up to a percent even where it is correct, and
by no more where it mixes few examples.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.extraction.traced import TracedStep

_HALF = frozenset((tf.float16, tf.bfloat16))
_HALF_ENUMS = frozenset(dtype.as_datatype_enum for dtype in _HALF)
_FLOAT = tf.float32.as_datatype_enum
# Ops whose result has another size if their float type has.
_BITS = frozenset(("Bitcast", "DecodeRaw", "DecodePaddedRaw"))
# Index of the input that replaces a random op, or None for a constant.
_RANDOM: dict[str, int | None] = {
  "RandomUniform": None,
  "RandomStandardNormal": None,
  "TruncatedNormal": None,
  "StatelessRandomUniform": None,
  "StatelessRandomUniformV2": None,
  "StatelessRandomNormal": None,
  "StatelessRandomNormalV2": None,
  "StatelessTruncatedNormal": None,
  "StatelessTruncatedNormalV2": None,
  "RandomUniformInt": 1,
  "StatelessRandomUniformInt": 2,
  "StatelessRandomUniformIntV2": 4,
}
# Replaces random numbers in [0, 1), so that dropout drops nothing.
_CONSTANT = 0.999
_SEEDS = ("StatelessRandomGetKeyCounter", "StatelessRandomGetAlg",
          "StatelessRandomGetKeyCounterAlg")  # fmt: skip


def incomparable(graph_def: tf.compat.v1.GraphDef) -> str:
  """Returns the reason why a step has no comparable form, or ""."""
  for node in _all_nodes(graph_def):
    if re.search(
      "Random|Multinomial|Poisson|ParameterizedTruncated", node.op
    ) and node.op not in (*_RANDOM, *_SEEDS):
      return f"the step has random ops of type {node.op}"
    if node.op in _BITS and any(
      attr.type in _HALF_ENUMS for attr in node.attr.values()
    ):
      return f"{node.op} {node.name!r} reads the bits of half precision"
  return ""


def uses_half(traced: TracedStep) -> bool:
  """Returns whether the step computes in float16 or bfloat16."""
  return any(
    attr.type in _HALF_ENUMS
    for node in _all_nodes(traced.graph_def)
    for attr in node.attr.values()
  )


def comparable(traced: TracedStep) -> TracedStep:
  """Returns a copy in float32 without random numbers."""
  graph_def = tf.compat.v1.GraphDef()
  graph_def.CopyFrom(traced.graph_def)
  for node in _all_nodes(graph_def):
    _widen_attrs(node.attr.values())
  _fix_nodes(graph_def.node, "{}")
  for function in graph_def.library.function:
    _fix_nodes(function.node_def, "{}:output:0")
    arguments = (function.signature.input_arg, function.signature.output_arg)
    for argument in itertools.chain(*arguments):
      argument.type = _widened(argument.type)
  return dataclasses.replace(
    traced,
    graph_def=graph_def,
    variables=_widen_specs(traced.variables),
    feeds=_widen_specs(traced.feeds),
  )


def _all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
  functions = (f.node_def for f in graph_def.library.function)
  return itertools.chain(graph_def.node, *functions)


def _widened(dtype: int) -> int:
  return _FLOAT if dtype in _HALF_ENUMS else dtype


def _widen_attrs(attrs: Iterable[Any]) -> None:
  for attr in attrs:
    kind = attr.WhichOneof("value")
    if kind == "type":
      attr.type = _widened(attr.type)
    elif kind == "tensor" and attr.tensor.dtype in _HALF_ENUMS:
      value = tf.make_ndarray(attr.tensor).astype(np.float32)
      attr.tensor.CopyFrom(tf.make_tensor_proto(value))
    elif kind == "func":
      _widen_attrs(attr.func.attr.values())
    elif kind == "list":
      attr.list.type[:] = map(_widened, attr.list.type)
      for function in attr.list.func:
        _widen_attrs(function.attr.values())


def _widen_specs(specs: Mapping[str, Any]) -> dict[str, Any]:
  """Returns variables or inputs in float32 where they are half precision."""
  return {
    name: dataclasses.replace(
      spec,
      dtype=tf.float32,
      value=None if spec.value is None else spec.value.astype(np.float32),
    )
    if spec.dtype in _HALF
    else spec
    for name, spec in specs.items()
  }


def _fix_nodes(nodes: Any, reference: str) -> None:
  for node in [node for node in nodes if node.op in _RANDOM]:
    data = [name for name in node.input if not name.startswith("^")]
    controls = [name for name in node.input if name.startswith("^")]
    dtype = _first(node, ("dtype", "Tout"))
    index = _first(node, ("Tshape", "T"))
    value = _RANDOM[node.op]
    if value is None:
      fixed = nodes.add(name=f"{node.name}/fixed", op="Const")
      fixed.device = node.device
      fixed.attr["dtype"].type = dtype
      fixed.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(_CONSTANT, tf.DType(dtype), ())
      )
      data = [data[0], reference.format(fixed.name)]
    else:
      data = [data[0], data[value]]
    node.op = "Fill"
    del node.input[:]
    node.input.extend([*data, *controls])
    node.attr.clear()
    node.attr["T"].type = dtype
    node.attr["index_type"].type = index


def _first(node: Any, names: Sequence[str]) -> int:
  """Returns the dtype of the first attribute that the node has."""
  return next((node.attr[n].type for n in names if n in node.attr), 0)
