"""GPUs of a process, described by data sheets or by measuring.

A card that `hardware.json` lacks is timed for about two seconds. Memory is
TensorFlow's own limit of each logical device.
"""

import collections
import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Device
from tfplace.graph.quantities import format_bytes
from tfplace.hardware.hardware import GPUS, find_gpu
from tfplace.hardware.presets import PLACETO_OP_OVERHEAD_US
from tfplace.measure.local import host

_logger = logging.getLogger("tfplace")


class LocalGpu(NamedTuple):
  """A logical GPU, the name of its physical GPU, and its key in `GPUS`."""

  device: Device
  physical: str
  card: str | None


def owners(names: Iterable[str]) -> dict[str, tuple[Any, int]]:
  """Maps each logical GPU, in order, to its physical GPU and the parts of that.

  Args:
    names: full names of all logical devices of this process.
  """
  result = []
  # Logical GPUs are numbered in this order, and not in that of the user.
  visible = tf.config.get_visible_devices("GPU")
  for gpu in sorted(visible, key=lambda gpu: int(gpu.name.split(":")[-1])):
    parts = tf.config.get_logical_device_configuration(gpu) or [None]
    result += [(gpu, len(parts))] * len(parts)
  gpus = (name for name in names if host.kind_of(name) == "GPU")
  ordered = sorted(gpus, key=host.kind_and_number)
  return dict(zip(ordered, result, strict=False))


def describe(limits: Mapping[str, float]) -> list[LocalGpu]:
  """Describes the GPUs of this process.

  Logical GPUs are equal parts of their physical GPU. If the GPUs differ, kinds
  are named by card, such as "GPU-a100".

  Args:
    limits: full name of each device -> TensorFlow's limit of its memory, bytes.

  Raises:
    MeasurementError: a card is in no table and reports no compute capability.
  """
  cards = []
  for name, (gpu, parts) in owners(limits).items():
    details = tf.config.experimental.get_device_details(gpu)
    product = str(details.get("device_name", gpu.name))
    version = details.get("compute_capability", ())
    cards.append((name, gpu, parts, product, ".".join(map(str, version))))
  first = {row[2:]: row[0] for row in reversed(cards)}  # is measured for all
  several = len(first) > 1
  result = []
  for name, gpu, parts, product, architecture in cards:
    card = find_gpu(product, architecture)
    overhead_us, extra = PLACETO_OP_OVERHEAD_US, {"product": product}
    if card is not None:
      hardware = GPUS[card].hardware
    else:
      hardware, overhead_us = measured_card(
        first[parts, product, architecture], product, architecture
      )
      extra["measured"] = _in_words(hardware, overhead_us)
    label = card or re.sub(r"[^a-z0-9]+", "-", product.lower()).strip("-")
    label += f"-1of{parts}" * (parts > 1)
    device = Device(
      name,
      f"GPU-{label}" if several else "GPU",
      limits[name],
      overhead_us,
      {**extra, "hardware": _part_of(hardware, parts)},
    )
    result.append(LocalGpu(device, gpu.name, card))
  return result


def log_measured(devices: Iterable[Device]) -> None:
  """Logs the figures of each measured card in one line."""
  cards = collections.defaultdict(list)
  for device in devices:
    if "measured" in device.extra:
      about = f"{device.extra['product']}: {device.extra['measured']}"
      cards[about].append(device.name.rpartition("/device:")[2])
  for about, names in cards.items():
    text = "%s: tfplace has no data sheet, so it measured %s"
    _logger.warning(text, ", ".join(names), about)


def _in_words(hardware: Mapping[str, Any], launch_us: float) -> str:
  peaks = ", ".join(
    f"{gflops / 1e3:.3g} TFLOPS in {name}"
    for name, gflops in hardware["peak_gflops"].items()
  )
  rate = f"{hardware['bandwidth'] / 1e6:.0f} GB/s"
  return f"{peaks}, memory of {rate}, {launch_us:.1f} us per op"


def _part_of(hardware: Mapping[str, Any], parts: int) -> dict[str, Any]:
  """Describes one of several logical GPUs that share a physical GPU."""
  fields = {"num_cores", "multiprocessors"} & hardware.keys()
  shares = {field: max(1, hardware[field] // parts) for field in fields}
  peaks = {name: p / parts for name, p in hardware["peak_gflops"].items()}
  return {**hardware, **shares, "peak_gflops": peaks}


# Least compute capability with tensor cores for a precision (`gpu_hardware`).
_PRECISIONS = {
  "fp32": (tf.float32, 0.0),
  "tf32": (tf.float32, 8.0),
  "fp16": (tf.float16, 7.0),
  "bf16": (tf.bfloat16, 8.0),
}
_SIDE = 4096  # rows of the matrices
_COPIED_BYTES = 256 << 20  # several times the L2 cache
_MEMORY_BYTES = 4 * _COPIED_BYTES  # of which three copies take most
_OPS = 256  # small ops of a step that times launches
_TIMED_S = 0.2  # of each figure
# Clock for which the cores of Grappler follow from the measured peak; products
# reach some 0.9 of the peak at 1.4 to 2.5 GHz.
_CLOCK_MHZ = 1500
# Capabilities whose multiprocessors have 64 lanes, as cores of Grappler do.
# Those of others have 128 (CUDA C++ programming guide, compute capabilities).
_64_LANES = ("6.0", "7.0", "7.2", "7.5", "8.0")
# Shares of the data sheet's bandwidth that copies reach (docs/costs.md), and
# the bandwidth up to which memory is taken for GDDR.
_HBM_SHARE, _GDDR_SHARE, _GDDR_KB_PER_S = 0.86, 0.73, 900_000_000


@functools.lru_cache
def measured_card(
  device: str, product: str, architecture: str
) -> tuple[dict[str, Any], float]:
  """Times products, a copy and launches on a device.

  Returns:
    Its `hardware` as in `hardware.json`, and microseconds per small op.

  Raises:
    MeasurementError: `architecture` is no compute capability, or the device
      lacks the memory.
  """
  try:
    capability = float(architecture)
  except ValueError:
    raise MeasurementError(
      f"{device} is {product!r}, which reports no compute capability; describe"
      " it in a cluster file"
    ) from None
  try:
    peaks = {
      name: 2e-3 * _SIDE**3 / _product_us(device, name, dtype)
      for name, (dtype, least) in _PRECISIONS.items()
      if capability >= least
    }
    copied_us, launch_us = _copy_us(device), _launch_us(device)
  except tf.errors.ResourceExhaustedError:
    raise MeasurementError(
      f"{device} lacks the memory to measure a {product!r}, some"
      f" {format_bytes(_MEMORY_BYTES)}; free it, or describe the device in a"
      " cluster file"
    ) from None
  kb_per_s = 2e3 * _COPIED_BYTES / copied_us / _GDDR_SHARE  # read and written
  memory_type = "gddr" if kb_per_s < _GDDR_KB_PER_S else "hbm"
  if memory_type == "hbm":
    kb_per_s *= _GDDR_SHARE / _HBM_SHARE
  cores = peaks["fp32"] / (2e-3 * 64 * _CLOCK_MHZ)
  hardware = {
    "type": "GPU",
    "model": product,
    "frequency": _CLOCK_MHZ,
    "num_cores": max(1, round(cores)),
    "multiprocessors": max(
      1, round(cores if architecture in _64_LANES else cores / 2)
    ),
    "bandwidth": round(kb_per_s),
    "environment": {"architecture": architecture},
    "peak_gflops": peaks,
    "memory_type": memory_type,
  }
  return hardware, launch_us


def _product_us(device: str, precision: str, dtype: tf.DType) -> float:
  allowed = tf.config.experimental.tensor_float_32_execution_enabled()
  tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")
  try:
    with tf.device(device):
      values = tf.random.stateless_uniform((_SIDE, _SIDE), (0, 0))
      matrix = tf.cast(values, dtype)
      return _time_us(lambda: tf.matmul(matrix, matrix))
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(allowed)


def _copy_us(device: str) -> float:
  with tf.device(device):
    values = tf.zeros(_COPIED_BYTES // 4)
    return _time_us(lambda: values + 1.0)


def _launch_us(device: str) -> float:
  @tf.function(jit_compile=False)
  def small_ops(value: tf.Tensor) -> tf.Tensor:
    for _ in range(_OPS):
      value = tf.sin(value)
    return value

  with tf.device(device):
    value = tf.zeros((1,))
    return _time_us(lambda: small_ops(value)) / _OPS


def _time_us(run: Callable[[], tf.Tensor]) -> float:
  """Returns the time of one of several runs that follow each other."""

  def seconds(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
      last = run()
    # A GPU runs its ops in order, so reading one number waits for all of them.
    tf.reshape(last, (-1,))[0].numpy()
    return time.perf_counter() - began

  seconds(1)  # loads libraries and kernels
  count = max(1, round(_TIMED_S / max(seconds(1), 1e-6)))
  return 1e6 * seconds(count) / count
