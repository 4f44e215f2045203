"""Kernels that ops launch, with sizes counted by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.cost.kernels import ops
from tfplace.cost.sizes import TensorSpec


def _op(build, *shapes, dtype=tf.float32):
  """The last op that a function of placeholders builds."""
  with tf.Graph().as_default() as graph:
    build(*(tf.compat.v1.placeholder(dtype, shape) for shape in shapes))
  op = graph.get_operations()[-1]

  def specs(tensors):
    return [TensorSpec(tuple(t.shape), t.dtype) for t in tensors]

  tensors = specs(op.inputs), specs(op.outputs)
  return ops.Op(op.type, op.node_def.attr, *tensors, ops.reduced_axes(op))


def _kernel(build, *shapes, dtype=tf.float32, tensor_float_32=False):
  return ops.kernel_of(_op(build, *shapes, dtype=dtype), tensor_float_32)


@pytest.mark.parametrize(
  ("build", "left", "right"),
  [
    (tf.matmul, [6, 5], [5, 7]),
    (lambda a, b: tf.matmul(a, b, transpose_a=True), [5, 6], [5, 7]),
    (lambda a, b: tf.matmul(a, b, transpose_b=True), [6, 5], [7, 5]),
    (lambda a, b: tf.einsum("mk,kn->mn", a, b), [6, 5], [5, 7]),
  ],
)
def test_products_have_m_n_and_k_in_any_layout(build, left, right):
  kernel = _kernel(build, left, right)
  assert kernel == ("matmul", "fp32", (1, 6, 7, 5))


@pytest.mark.parametrize(
  "build",
  [
    lambda a, b: tf.matmul(a, b, transpose_b=True),
    lambda a, b: tf.einsum("bhik,bhjk->bhij", a, b),
  ],
)
def test_batches_of_products_multiply(build):
  kernel = _kernel(build, [2, 3, 6, 5], [2, 3, 7, 5])
  assert kernel == ("batch_matmul", "fp32", (6, 6, 7, 5))


def test_a_convolution_and_its_gradients_have_one_shape():
  # 4 images of 9 x 8 x 3, 5 filters of 3 x 3, stride 2: 5 x 4 pixels.
  image, filters, result = [4, 9, 8, 3], [3, 3, 3, 5], [4, 5, 4, 5]
  args = {"strides": [1, 2, 2, 1], "padding": "SAME"}
  forward = _kernel(lambda x, w: tf.nn.conv2d(x, w, **args), image, filters)
  of_image = _kernel(
    lambda w, dy: tf.raw_ops.Conv2DBackpropInput(
      input_sizes=image, filter=w, out_backprop=dy, **args
    ),
    filters,
    result,
  )
  of_filters = _kernel(
    lambda x, dy: tf.raw_ops.Conv2DBackpropFilter(
      input=x, filter_sizes=filters, out_backprop=dy, **args
    ),
    image,
    result,
  )
  elements = 4 * 9 * 8 * 3 + 4 * 5 * 4 * 5
  assert forward.sizes == (4, 5, 4, 3, 5, 3, 3, 2, elements)
  assert (forward.name, of_image.name) == ("convolution", "input_gradient")
  assert of_filters.name == "filter_gradient"
  assert forward.sizes == of_image.sizes == of_filters.sizes


def test_images_may_have_channels_first():
  kernel = _kernel(
    lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", data_format="NCHW"),
    [4, 3, 9, 8],
    [3, 3, 3, 5],
  )
  assert kernel.sizes[:5] == (4, 9, 8, 3, 5)


def test_grouped_convolutions_are_memory_bound():
  kernel = _kernel(
    lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), [4, 9, 8, 6], [3, 3, 3, 10]
  )
  assert kernel.name == "elementwise"
  read, written = 4 * 9 * 8 * 6 + 3 * 3 * 3 * 10, 4 * 9 * 8 * 10
  assert kernel.sizes[0] == 4 * (read + written)


@pytest.mark.parametrize(
  ("dtype", "tensor_float_32", "precision"),
  [
    (tf.float32, False, "fp32"),
    (tf.float32, True, "tf32"),
    (tf.float16, True, "fp16"),
    (tf.bfloat16, False, "bf16"),
    (tf.float64, True, "fp64"),
  ],
)
def test_precision_follows_types_and_the_tf32_switch(
  dtype, tensor_float_32, precision
):
  kernel = _kernel(
    tf.matmul, [6, 5], [5, 7], dtype=dtype, tensor_float_32=tensor_float_32
  )
  assert kernel.precision == precision


def test_elementwise_ops_count_what_they_read_and_write():
  kernel = _kernel(tf.add, [6, 5], [6, 5])
  assert kernel == ("elementwise", "fp32", (3 * 6 * 5 * 4, 0.0, 0.0))
  half = _kernel(tf.add, [6, 5], [6, 5], dtype=tf.float16)
  assert half.sizes[0] == kernel.sizes[0] / 2


def test_a_gather_reads_only_the_rows_it_takes():
  with tf.Graph().as_default():
    op = _op(lambda x: tf.gather(x, [1, 2], axis=0), [1000, 8])
  assert op.type == "GatherV2"
  assert ops.kernel_of(op, False).sizes[0] == 2 * 2 * 8 * 4


@pytest.mark.parametrize(
  "build",
  [
    *(tf.identity, tf.stop_gradient, lambda x: tf.reshape(x, [-1]), tf.shape),
    # TensorFlow forwards the input: there is nothing to add.
    lambda x: tf.reduce_sum(x, np.array([], np.int32)),
    lambda x: tf.reduce_mean(x[None], 0),
  ],
)
def test_ops_without_a_kernel_take_no_time(build):
  assert _kernel(build, [6, 5]) is None


def test_integers_of_shapes_stay_on_the_host():
  assert _kernel(tf.add, [4], [4], dtype=tf.int32) is None
  assert _kernel(tf.add, [400], [400], dtype=tf.int32) is not None


@pytest.mark.parametrize(
  ("build", "shapes", "indices"),
  [
    # One index for each element and dimension of the result.
    (lambda x: tf.tile(x, [1, 4, 1]), [[3, 1, 5]], 3 * 4 * 5 * 3),
    # Two neighbors are broadcast alike: batch, pixels, groups and channels.
    (tf.subtract, [[2, 3, 3, 4, 5], [2, 1, 1, 4, 1]], 2 * 9 * 4 * 5 * 4),
    # A bias or a row has two parts, for which libraries have a fast path.
    (tf.add, [[2, 3, 3, 4], [4]], 0),
    (tf.add, [[6, 5], [6, 1]], 0),
    (tf.add, [[6, 5], [6, 5]], 0),
    (tf.nn.bias_add, [[2, 3, 3, 4], [4]], 2 * 9 * 4),
    # Means of groups: batch and groups stay, pixels and channels are summed.
    (lambda x: tf.reduce_mean(x, [1, 2, 4], keepdims=True),
     [[2, 3, 3, 4, 5]], 2 * 9 * 4 * 5 * 4),
    (lambda x: tf.reduce_sum(x, [1, -1]), [[2, 9, 4, 5]], 2 * 9 * 4 * 5 * 4),
    (lambda x: tf.reduce_mean(x, [1, 2]), [[2, 3, 3, 4]], 0),
  ],
)  # fmt: skip
def test_indices_of_broadcasts_tiles_and_reductions(build, shapes, indices):
  kernel = _kernel(build, *shapes)
  assert kernel.sizes[1] == indices


@pytest.mark.parametrize(
  ("shape", "axes", "terms"),
  [
    # Images and channels stay: a thread for each of 128 results adds 9 pixels.
    ([8, 3, 3, 16], [1, 2], 9),
    ([8, 3, 3, 16, 1], [1, 2], 9),
    # Threads share sums that are 16 times as long as there are results, ...
    ([1, 2, 64, 2], [2], 0),
    # ... and those of rows, columns and both ends.
    ([8, 9, 16], [2], 0),
    ([8, 9, 16], [0, 1], 0),
    ([8, 9, 16], [0, 2], 0),
  ],
)
def test_a_thread_adds_the_middle_of_three_dimensions(shape, axes, terms):
  kernel = _kernel(lambda x: tf.reduce_sum(x, axes), shape)
  assert kernel.sizes[2] == terms


def test_a_loss_of_classes_passes_six_times_over_its_logits():
  kernel = _kernel(
    lambda logits: tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
      features=logits, labels=tf.zeros([6], tf.int32)
    ),
    [6, 50],
  )
  assert kernel.name == "softmax"
  assert kernel.sizes[0] == 6 * (6 * 50 * 4)


def test_a_transposing_reduction_reads_twice_and_writes_more():
  kernel = _kernel(
    lambda x: tf.reduce_sum(x, [1, 3], keepdims=True), [2, 3, 4, 5]
  )
  read, axes = 4 * 2 * 3 * 4 * 5, 4 * 2
  assert kernel.sizes[0] == 3 * read + axes + 4 * 2 * 4
