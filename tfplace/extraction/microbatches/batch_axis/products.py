"""Rules for sums of products: matrix products, Einsum and convolutions."""

from collections.abc import Hashable, Sequence

from tfplace.extraction.microbatches.batch_axis.values import (
  AGGREGATE,
  COMBINES,
  COUNT,
  FIXED,
  NUMBERS,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  Value,
  check_fixed,
  join,
  rows_in,
  rule,
)

Labels = Sequence[Hashable]
_WEIGHTS = "has weights or arguments that depend on the batch"


def _contracted(
  values: Sequence[Value], labels: Sequence[Labels], output: Labels
) -> Value:
  reduced = [value for value in values if isinstance(value, Reduced)]
  if reduced:
    if len(reduced) == 1 and sum(v == FIXED for v in values) == len(values) - 1:
      return reduced[0]
    raise Mixes(AGGREGATE)
  found: set[Hashable] = set()
  rows = []
  for value, names in zip(values, labels, strict=True):
    if isinstance(value, Rows):
      found.add(names[value.axis])
      rows.append(value.plain(0))
    elif not isinstance(value, Fixed):
      raise Mixes(COUNT)
  if len(found) > 1:
    raise Mixes("multiplies each example with every other")
  joined = join(rows)
  (label,) = found
  if label not in output:
    return Reduced("sum")
  return joined.plain(list(output).index(label))


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _product(op: OpPair, inputs: list[Value]) -> Value:
  prefix = ("transpose_a", "transpose_b")
  if op.type != "MatMul":
    prefix = ("adj_x", "adj_y")
  left, right = ["m", "k"], ["k", "n"]
  if op.attr(prefix[0]):
    left.reverse()
  if op.attr(prefix[1]):
    right.reverse()

  def batch(rank: int) -> list[Hashable]:  # broadcast axes
    return [-axis for axis in range(rank, 2, -1)]

  return _contracted(
    inputs,
    [[*batch(op.in_rank(0)), *left], [*batch(op.in_rank(1)), *right]],
    [*batch(op.out_rank()), "m", "n"],
  )


@rule("Einsum")
def _einsum(op: OpPair, inputs: list[Value]) -> Value:
  terms, _, result = op.attr("equation").decode().partition("->")
  labels = [
    _labels(term, op.in_rank(i)) for i, term in enumerate(terms.split(","))
  ]
  return _contracted(inputs, labels, _labels(result, op.out_rank()))


def _labels(term: str, rank: int) -> list[Hashable]:
  before, dots, after = term.strip().partition("...")
  count = rank - len(before) - len(after)
  hidden = [-axis for axis in range(count, 0, -1)] if dots else []
  return [*before, *hidden, *after]


def _of_images(value: Value) -> Rows:
  """Returns the rows of images, whose first axis is the batch."""
  rows = rows_in(value, AGGREGATE)
  if rows.axis:
    raise Mixes(COMBINES)
  return rows.plain()


@rule(
  "Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPoolV2",
  "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax", "LRN", "Dilation2D",
  "ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea",
  "ScaleAndTranslate", "DepthToSpace", "SpaceToDepth", "ExtractImagePatches",
  "ExtractVolumePatches", "RGBToHSV", "HSVToRGB", "AdjustContrastv2",
  "AdjustHue", "AdjustSaturation", "FractionalAvgPool", "FractionalMaxPool",
)  # fmt: skip
def _image(op: OpPair, inputs: list[Value]) -> Value:
  """Ops on images; the first axis is the batch in every data format."""
  check_fixed(inputs[1:], _WEIGHTS)
  if op.type == "MaxPoolWithArgmax" and op.attr("include_batch_in_index"):
    raise Mixes(NUMBERS)
  return _of_images(inputs[0])


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _transformed(op: OpPair, inputs: list[Value]) -> Value:
  check_fixed(inputs[2:])
  return join([_of_images(v) for v in inputs[:2] if v != FIXED])


@rule(
  "Conv2DBackpropInput", "Conv3DBackpropInputV2",
  "DepthwiseConv2dNativeBackpropInput",
)  # fmt: skip
def _transposed(op: OpPair, inputs: list[Value]) -> Value:
  sizes, weights, images = inputs
  if not isinstance(sizes, (Fixed, Sized)) or weights != FIXED:
    raise Mixes(_WEIGHTS)
  return _of_images(images)


@rule(
  "Conv2DBackpropFilter", "Conv3DBackpropFilterV2",
  "DepthwiseConv2dNativeBackpropFilter",
)  # fmt: skip
def _filter_gradient(op: OpPair, inputs: list[Value]) -> Value:
  join([_of_images(inputs[0]), _of_images(inputs[2])])
  return Reduced("sum")


@rule("MaxPoolGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad")
def _pool_gradient(op: OpPair, inputs: list[Value]) -> Value:
  is_mean = op.type.startswith("Avg")  # Its first input is a shape.
  return join([_of_images(value) for value in inputs[is_mean:]])


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(op: OpPair, inputs: list[Value]) -> Value | list[Value]:
  rows = rows_in(inputs[0], AGGREGATE)
  if not op.attr("is_training"):
    check_fixed(inputs[1:], "has weights that depend on the batch")
    return [_of_images(rows), *[FIXED] * (len(op.first.outputs) - 1)]
  # Statistics are computed per channel.
  last = op.attr("data_format")[-1:] == b"C"
  if rows.axis != (op.in_rank(0) - 1 if last else 1):
    raise Mixes("computes statistics over the examples of the batch")
  scale = [v for v in inputs[1:] if isinstance(v, Rows)]
  join([rows.plain(0), *(v.plain(0) for v in scale)])
  rest = len(op.first.outputs) - 1
  return [rows.plain(), *[rows.plain(0)] * rest]
