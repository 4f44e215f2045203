"""Properties of kernel times, and bounds that hold on any GPU."""

import dataclasses
import json

import numpy as np
import pytest

from tfplace.core.gpu_hardware import gpu_hardware
from tfplace.core.hardware import GPUS
from tfplace.cost.kernels import parameters, tiles
from tfplace.cost.kernels.correction import (
  Correction,
  Forest,
  quadratic,
)
from tfplace.cost.kernels.ops import Kernel
from tfplace.cost.kernels.rates import rates
from tfplace.cost.kernels.times import times_us

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
  (time_us,) = _us(name, Kernel("elementwise", "fp32", (num_bytes, 1e4, 1e4)))
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
  assert 1.2 < direct / time_us < 4.0  # F(4x4, 3x3) saves 4 at most


def test_times_do_not_depend_on_what_else_is_timed():
  kernels = [
    _matmul(512, 512, 512),
    Kernel("softmax", "fp16", (1e6, 500, 500)),
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
    PARAMETERS.matmul.tiles, fill_k=0.0, fill_power=0.0, half_intensity=0.0
  )
  # 80 multiprocessors of 15.67 TFLOPS: a 128 x 128 tile of K = 800 takes
  # 2 * 128 * 128 * 800 / (15.67e6 / 80) us.
  one = 2 * 128 * 128 * 800 / (2e-3 * 5120 * 1530 * 1e3 / 80)
  waves = np.array([1.0, 2.0])
  found = tiles.compute_us(waves, (128, 128), np.full(2, 800), of_gpu, simple)
  np.testing.assert_allclose(found, [one, 2 * one])


def test_a_forest_adds_the_leaves_that_a_row_reaches():
  # Tree 0: feature 1 <= 2 ? (feature 0 <= 5 ? 0.1 : 0.2) : 0.3. Tree 1: one
  # node, feature 0 <= 1 ? -1 : 1.
  forest = Forest(
    feature=[[1, 0], [0]],
    threshold=[[2.0, 5.0], [1.0]],
    left=[[1, -2], [-1]],
    right=[[-1, -3], [-2]],
    value=[[0.3, 0.1, 0.2], [-1.0, 1.0]],
  )
  rows = np.array([[5.0, 2.0], [6.0, 0.0], [0.0, 3.0]])
  np.testing.assert_allclose(forest.predict(rows), [1.1, 1.2, -0.7])


def test_a_forest_refines_a_quadratic_correction_within_bounds():
  leaf = Forest([[0]], [[0.0]], [[-1]], [[-2]], [[0.5, 100.0]])
  correction = Correction([0.25], leaf)
  found = correction.factor(np.ones((2, 1)), np.array([[-1.0], [1.0]]))
  # exp(0.25 + 0.5), and exp(0.25 + 1): each part is at most 1.
  np.testing.assert_allclose(found, np.exp([0.75, 1.25]))


def test_quadratic_features_are_one_each_and_every_product():
  columns = quadratic([np.array([2.0]), np.array([-9.0])])
  # The second is clipped to -2.5.
  assert [c[0] for c in columns] == [1, 2, -2.5, 4, -5, 6.25]


def test_the_parameter_file_survives_a_round_trip():
  content = json.loads(json.dumps(PARAMETERS.to_json()))
  assert parameters.from_json(content) == PARAMETERS
