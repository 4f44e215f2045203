"""Properties of kernel times, and bounds that hold on any GPU."""

import dataclasses

import numpy as np
import pytest

from tfplace.cost.kernels import gemm, parameters
from tfplace.cost.kernels.correction import Forest
from tfplace.cost.kernels.ops import Kernel
from tfplace.cost.kernels.rates import rates
from tfplace.cost.kernels.times import times_us
from tfplace.hardware.gpu_hardware import gpu_hardware
from tfplace.hardware.hardware import GPUS

PARAMETERS = parameters.load()


def _gpu(name):
  return gpu_hardware(name, GPUS[name].hardware)


def _us(name, *kernels):
  return times_us(kernels, _gpu(name), PARAMETERS)


def _matmul(m, n, k, precision="fp32"):
  return Kernel("matmul", precision, (1, m, n, k))


def _convolution(side, channels, filters, kernel=3, stride=1, batch=32):
  elements = batch * side**2 * (channels * stride**2 + filters)
  sizes = (batch, side, side, channels, filters, kernel, kernel, stride)
  return Kernel("convolution", "fp32", (*sizes, elements))


@pytest.mark.parametrize("name", GPUS)
def test_no_product_is_faster_than_the_peak_of_its_gpu(name):
  for precision in ("fp32", "tf32", "fp16", "bf16"):
    peaks = _gpu(name).peak_flops_per_us
    peak = peaks.get(precision, peaks["fp32"])
    (time_us,) = _us(name, _matmul(8192, 8192, 8192, precision))
    assert 2 * 8192**3 / time_us <= peak * (1 + 1e-9)


@pytest.mark.parametrize("name", GPUS)
def test_no_elementwise_kernel_is_faster_than_the_memory(name):
  num_bytes = 3e9
  (time_us,) = _us(name, Kernel("elementwise", "fp32", (num_bytes, 0.0, 0.0)))
  ratio = num_bytes / time_us / _gpu(name).bandwidth_bytes_per_us
  assert 0.5 < ratio < 1


def test_a_gpu_without_tensor_cores_multiplies_halves_as_floats():
  one, other = _us(
    "p100", _matmul(4096, 4096, 4096), _matmul(4096, 4096, 4096, "fp16")
  )
  assert 0.8 < other / one <= 1.001  # only memory traffic is less


@pytest.mark.parametrize("gpu", ["k80", "p4", "p100", "v100", "t4"])
@pytest.mark.parametrize("side", [14, 28, 56])
def test_winograd_gains_on_every_card_without_tf32(gpu, side):
  # Layers of VGG16.
  channels = 7168 // side
  kernel = _convolution(side, channels, channels)
  batch, height, width, _, _, *_ = kernel.sizes
  product = _matmul(batch * height * width, channels, 9 * channels)
  (direct,), (time_us,) = _us(gpu, product), _us(gpu, kernel)
  # F(4x4, 3x3) saves 4 at most; both times are estimates.
  assert 1.2 < direct / time_us < 4.5


# Side and channels of a result, channels, filter, stride, and microseconds
# forward and backward of fp32 convolutions of 16 images on a V100 (SXM2,
# microsoft/SuperScaler, profiled-time-eurosys).
CONVOLUTIONS = [
  (56, 896, 448, 1, 1, 4261, 6481),
  (56, 224, 896, 1, 1, 2006, 3992),
  (28, 1792, 896, 1, 1, 3644, 6090),
  (14, 3584, 1792, 1, 1, 3829, 7033),
  (56, 448, 224, 3, 1, 2954, 5193),
  (28, 896, 448, 3, 2, 7214, 14500),
  (14, 1792, 896, 3, 2, 7695, 17665),
]


def test_convolutions_take_the_published_time():
  errors = []
  for side, filters, channels, size, stride, *measured in CONVOLUTIONS:
    kernel = _convolution(side, channels, filters, size, stride, 16)
    forward, *gradients = _us(
      "v100",
      kernel,
      kernel._replace(name="input_gradient"),
      kernel._replace(name="filter_gradient"),
    )
    errors += [forward / measured[0], sum(gradients) / measured[1]]
  errors = np.abs(np.log(errors))
  assert np.median(errors) < 0.18
  assert errors.max() < 0.3


# Gates, units, batch and time steps of layers in fp32 on a V100 without the
# product of their inputs, and milliseconds forward and backward
# (baidu-research/DeepBench, cuDNN 7.6). Costs were fitted to such LSTMs; the
# GRUs, for which cuDNN has faster kernels, are a holdout.
RECURRENT = [
  (4, 512, 32, 25, 1.144, 1.014 + 0.271),
  (4, 1024, 128, 25, 3.249, 3.017 + 2.107),
  (4, 2048, 64, 25, 5.570, 4.871 + 4.100),
  (3, 1024, 32, 1500, 59.131, 66.913 + 19.949),
  (3, 1536, 32, 375, 23.164, 27.421 + 11.676),
  (3, 2048, 32, 187, 22.113, 20.609 + 10.229),
]


def test_recurrent_layers_take_the_published_time():
  errors = []
  for gates, units, batch, steps, *measured in RECURRENT:
    sizes = (steps, batch, 1, units, gates * units, 1)
    kernels = [Kernel("recurrent", "fp32", (*sizes, k)) for k in (0, 1)]
    errors.append(_us("v100", *kernels) / np.multiply(measured, 1e3))
  errors = np.abs(np.log(errors))
  assert errors[:3].max() < 0.25
  assert errors[3:].max() < 0.65


def test_a_serial_sum_waits_for_each_of_its_terms():
  # 10,000 terms take 1 ms on any card, whose memory would be done before.
  for name in ("k80", "h200"):
    (time_us,) = _us(name, Kernel("elementwise", "fp32", (1e6, 0.0, 1e4)))
    assert time_us == pytest.approx(1000.0)


def test_times_do_not_depend_on_what_else_is_timed():
  kernels = [
    _matmul(512, 512, 512),
    Kernel("softmax", "fp16", (1e6, 0.0, 0.0)),
    _convolution(14, 64, 64),
    _matmul(64, 64, 64, "fp16"),
  ]
  together = _us("t4", *kernels)
  alone = [_us("t4", kernel)[0] for kernel in kernels]
  np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_a_partial_wave_takes_as_long_as_a_whole_one():
  limits = dataclasses.replace(PARAMETERS.limits, flops_per_joule=1e9)
  of_gpu = rates(_gpu("v100"), "fp32", limits)
  simple = dataclasses.replace(
    PARAMETERS.matmul, fill_k=0.0, half_intensity=0.0
  )
  # 80 multiprocessors of 15.67 TFLOPS: a 128 x 128 tile of K = 800 takes
  # 2 * 128 * 128 * 800 / (15.67e6 / 80) us. Up to six waves take as long as
  # six, 481 tiles as long as seven.
  one = 2 * 128 * 128 * 800 / (2e-3 * 5120 * 1530 * 1e3 / 80)
  tiles = np.array([1.0, 480.0, 481.0])
  found = gemm.compute_us(tiles, (128, 128), np.full(3, 800), of_gpu, simple)
  np.testing.assert_allclose(found, [6 * one, 6 * one, 7 * one])


def test_a_forest_adds_the_leaves_that_a_row_reaches():
  # Tree 0: feature 1 <= 2 ? (feature 0 <= 5 ? 0.1 : 0.2) : 0.3. Tree 1:
  # feature 0 <= 1 ? -0.5 : 0.5. Tree 2 is a leaf.
  forest = Forest(
    [[1, 2.0, [0, 5.0, 1000, 2000], 3000], [0, 1.0, -5000, 5000], -5000]
  )
  rows = np.array([[5.0, 2.0], [6.0, 0.0], [0.0, 3.0]])
  np.testing.assert_allclose(forest.factor(rows), np.exp([0.1, 0.2, -0.7]))


def test_a_forest_changes_a_time_by_e_at_most():
  forest = Forest([[0, 0.0, -90000, 90000]])
  found = forest.factor(np.array([[-1.0], [1.0]]))
  np.testing.assert_allclose(found, np.exp([-1.0, 1.0]))
  np.testing.assert_allclose(Forest([]).factor(np.ones((2, 3))), [1.0, 1.0])


# M, N, K and microseconds of bfloat16 products (ai-dynamo/aiconfigurator,
# Apache 2.0).
PUBLISHED = {
  "a100-80gb": [
    (1, 4096, 4096, 25.1),
    (128, 4096, 4096, 37.4),
    (1024, 4096, 4096, 204.2),
    (4096, 4096, 1024, 150.5),
    (8192, 8192, 8192, 3965.9),
    (4096, 10240, 8192, 2454.3),
    (256, 16384, 2048, 115.1),
    (2048, 1024, 512, 18.3),
    (64, 2048, 16384, 58.2),
  ],
  "h100": [
    (1, 4096, 4096, 15.8),
    (128, 4096, 4096, 16.7),
    (1024, 4096, 4096, 44.2),
    (4096, 4096, 1024, 53.5),
    (8192, 8192, 8192, 1473.2),
    (4096, 10240, 8192, 861.9),
    (256, 16384, 2048, 34.7),
    (2048, 1024, 512, 6.2),
    (64, 2048, 16384, 31.5),
  ],
  "b200": [
    (1, 4096, 4096, 9.7),
    (128, 4096, 4096, 9.7),
    (1024, 4096, 4096, 24.4),
    (4096, 4096, 1024, 24.2),
    (8192, 8192, 8192, 651.9),
    (4096, 10240, 8192, 382.5),
    (256, 16384, 2048, 16.6),
    (2048, 1024, 512, 4.2),
    (64, 2048, 16384, 15.2),
  ],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensor_cores_take_the_published_time(name):
  kernels = [_matmul(m, n, k, "bf16") for m, n, k, _ in PUBLISHED[name]]
  measured = np.array([us for *_, us in PUBLISHED[name]])
  errors = np.abs(_us(name, *kernels) / measured - 1)
  assert errors.mean() < 0.1
  assert errors.max() < 0.3


@pytest.mark.parametrize("name", ["a100", "l40s", "h200", "gh200", "b200"])
def test_tf32_is_half_as_fast_as_fp16(name):
  full, half = _us(
    name, _matmul(8192, 8192, 8192, "tf32"), _matmul(8192, 8192, 8192, "fp16")
  )
  assert 1.8 < full / half < 2.2
