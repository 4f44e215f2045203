"""Hardware fields of a GPU that its kernel times depend on.

A device of a cluster file describes its GPU in `extra["hardware"]`. Besides the
fields of TensorFlow's `DeviceProperties`, that description may have the fields
of `FIELDS`. The fields that it lacks follow from the compute capability.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tfplace.errors import ProblemError, shown

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16")
MEMORY_TYPES = ("gddr", "hbm")

# Fields of `hardware` that TensorFlow's `DeviceProperties` lacks.
FIELDS = ("multiprocessors", "peak_gflops", "power_watts", "memory_type")

# Compute capability -> peaks over that of fp32: tf32, then fp16 and bf16 with
# tensor cores (CUDA C++ programming guide, arithmetic instructions, and the
# white papers of Volta, Turing, Ampere, Ada and Hopper). A capability between
# two takes the lower one.
_TENSOR_CORES = (
  (7.0, 0.0, 8.0, 0.0),
  (7.5, 0.0, 8.0, 0.0),
  (8.0, 8.0, 16.0, 16.0),
  (8.6, 2.0, 4.0, 4.0),
  (9.0, 7.4, 14.8, 14.8),
)
_GDDR_BYTES_PER_US = 700e3  # the fastest GDDR6 card here has 600 GB/s
_L2_BYTES = 4 << 20  # of P100 and T4, for a card that does not say


@dataclasses.dataclass(frozen=True)
class GpuHardware:
  """One GPU, as cost models see it.

  Attributes:
    architecture: compute capability, such as 8.6.
    multiprocessors: streaming multiprocessors.
    peak_flops_per_us: precision -> floating-point operations per microsecond, a
      multiply-add as two; "tf32", "fp16" and "bf16" are of tensor cores and
      absent where the GPU has none for them.
    bandwidth_bytes_per_us: memory bandwidth of the data sheet.
    l2_bytes: size of the L2 cache.
    power_watts: power limit; infinite where it is unknown.
    memory_type: one of `MEMORY_TYPES`.
  """

  architecture: float
  multiprocessors: int
  peak_flops_per_us: Mapping[str, float]
  bandwidth_bytes_per_us: float
  l2_bytes: float
  power_watts: float
  memory_type: str


def gpu_hardware(device: str, described: Mapping[str, Any]) -> GpuHardware:
  """Reads the description of a GPU.

  Args:
    described: `hardware` of the device: MHz, KB/s, bytes, GFLOP/s, watts.

  Raises:
    ProblemError: a field is missing or has a value that it cannot have.
  """
  fields = _Fields(device, described)
  architecture = fields.architecture()
  said = fields.peaks()
  peak = said.get("fp32") or fields.fp32_gflops(architecture)
  peaks = {"fp32": peak, **(said or _tensor_peaks(architecture, peak))}
  bandwidth = fields.number("bandwidth") * 1e-3  # from KB/s
  default = "gddr" if bandwidth < _GDDR_BYTES_PER_US else "hbm"
  return GpuHardware(
    architecture,
    int(fields.number("multiprocessors", described.get("num_cores"))),
    {name: gflops * 1e3 for name, gflops in peaks.items()},
    bandwidth,
    fields.number("l2_cache_size", _L2_BYTES),
    fields.number("power_watts", math.inf),
    fields.choice("memory_type", MEMORY_TYPES, default),
  )


def lanes_per_core(architecture: float) -> int:
  """Single-precision lanes of one of Grappler's `num_cores`."""
  return 192 if architecture < 4 else 128 if architecture < 6 else 64


def _tensor_peaks(architecture: float, peak: float) -> dict[str, float]:
  """Precision -> peak of the tensor cores of a compute capability."""
  known = [row for row in _TENSOR_CORES if row[0] <= architecture]
  if not known:
    return {}
  ratios = zip(("tf32", "fp16", "bf16"), known[-1][1:], strict=True)
  return {name: ratio * peak for name, ratio in ratios if ratio}


@dataclasses.dataclass(frozen=True)
class _Fields:
  """Checked access to the fields of a description."""

  device: str
  described: Mapping[str, Any]

  def number(self, field: str, default: float | None = None) -> float:
    """A value above 0."""
    return self._positive(field, self.described.get(field, default))

  def architecture(self) -> float:
    """The compute capability."""
    environment = self.described.get("environment") or {}
    text: Any = environment.get("architecture")
    try:
      value = float(text)
    except (TypeError, ValueError):
      value = math.nan
    if not 1 <= value < 100:
      raise self._error(
        f"architecture of its hardware is {shown(text)}; it must be the compute"
        ' capability, such as "8.6"'
      )
    return value

  def fp32_gflops(self, architecture: float) -> float:
    """The single-precision peak of cores and clock."""
    lanes = lanes_per_core(architecture)
    clock = self.number("frequency")
    return 2e-3 * self.number("num_cores") * lanes * clock

  def peaks(self) -> dict[str, float]:
    """Precision -> GFLOP/s, as described; empty where nothing is."""
    said = self.described.get("peak_gflops", {})
    if not isinstance(said, Mapping):
      raise self._error(
        f"peak_gflops of its hardware is {shown(said)}; it must be an object"
        f" with keys of {', '.join(PRECISIONS)}"
      )
    for name in said:
      if name not in PRECISIONS:
        raise self._error(
          f"peak_gflops of its hardware has the unknown precision"
          f" {shown(name)}; choose from {', '.join(PRECISIONS)}"
        )
    return {
      name: self._positive(f"peak_gflops of {name}", value)
      for name, value in said.items()
    }

  def choice(self, field: str, choices: tuple[str, ...], default: str) -> str:
    """One of the choices."""
    value = self.described.get(field, default)
    if value not in choices:
      raise self._error(
        f"{field} of its hardware is {shown(value)}; choose from"
        f" {', '.join(choices)}"
      )
    return value

  def _positive(self, field: str, value: Any) -> float:
    try:  # JSON of protobuf writes 64-bit integers as text
      number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
      number = math.nan
    if not number > 0:
      raise self._error(
        f"{field} of its hardware must be a number above 0, not {shown(value)}"
      )
    return number

  def _error(self, message: str) -> ProblemError:
    return ProblemError(
      f"device {self.device!r}: {message}", device=self.device
    )
