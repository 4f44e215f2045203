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

# Compute capability -> peaks of its tensor cores over that of fp32 (CUDA C++
# programming guide, arithmetic instructions, and the white papers of Volta,
# Turing, Ampere, Ada and Hopper). A capability between two takes the lower one.
_TENSOR_CORES = {
  7.0: {"fp16": 8.0},
  7.5: {"fp16": 8.0},
  8.0: {"tf32": 8.0, "fp16": 16.0, "bf16": 16.0},
  8.6: {"tf32": 2.0, "fp16": 4.0, "bf16": 4.0},
  9.0: {"tf32": 7.4, "fp16": 14.8, "bf16": 14.8},
}
# KB/s of any GPU; figures in GB/s or bytes/s are beyond.
_LEAST_KB_PER_S, _MOST_KB_PER_S = 1e6, 1e11
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
  read = _Description(device, described)
  architecture = read.architecture()
  kb_per_s = read.number("bandwidth")
  if not _LEAST_KB_PER_S <= kb_per_s <= _MOST_KB_PER_S:
    raise read.refusal(
      f"bandwidth of its hardware is {kb_per_s:g} KB/s, which no GPU has; give"
      " KB/s, such as 936000000 for 936 GB/s"
    )
  bandwidth = kb_per_s * 1e-3
  usual = "gddr" if bandwidth < _GDDR_BYTES_PER_US else "hbm"
  memory_type = described.get("memory_type", usual)
  if memory_type not in MEMORY_TYPES:
    raise read.refusal(
      f"memory_type of its hardware is {shown(memory_type)}; choose from"
      f" {', '.join(MEMORY_TYPES)}"
    )
  return GpuHardware(
    architecture,
    int(read.number("multiprocessors", described.get("num_cores"))),
    {name: 1e3 * gf for name, gf in read.peak_gflops(architecture).items()},
    bandwidth,
    read.number("l2_cache_size", _L2_BYTES),
    read.number("power_watts", math.inf),
    memory_type,
  )


class _Description:
  """Fields of a described GPU; reading an invalid one raises ProblemError."""

  def __init__(self, device: str, fields: Mapping[str, Any]) -> None:
    self._device, self._fields = device, fields

  def refusal(self, message: str) -> ProblemError:
    text = f"device {self._device!r}: {message}"
    return ProblemError(text, device=self._device)

  def number(self, field: str, default: float | None = None) -> float:
    return self._positive(field, self._fields.get(field, default))

  def _positive(self, field: str, value: Any) -> float:
    number = _number(value)
    if not number > 0:
      raise self.refusal(
        f"{field} of its hardware must be a number above 0, not {shown(value)}"
      )
    return number

  def architecture(self) -> float:
    text = (self._fields.get("environment") or {}).get("architecture")
    number = _number(text)
    if not 1 <= number < 100:
      raise self.refusal(
        f"architecture of its hardware is {shown(text)}; it must be the compute"
        ' capability, such as "8.6"'
      )
    return number

  def peak_gflops(self, architecture: float) -> dict[str, float]:
    """Returns the peak by precision; what is absent follows from others."""
    given = self._fields.get("peak_gflops", {})
    if not isinstance(given, Mapping):
      raise self.refusal(
        f"peak_gflops of its hardware is {shown(given)}; it must be an object"
        f" with keys of {', '.join(PRECISIONS)}"
      )
    for name in given:
      if name not in PRECISIONS:
        raise self.refusal(
          "peak_gflops of its hardware has the unknown precision"
          f" {shown(name)}; choose from {', '.join(PRECISIONS)}"
        )
    peaks = {
      name: self._positive(f"peak_gflops of {name}", value)
      for name, value in given.items()
    }
    peak = peaks.get("fp32")
    if peak is None:
      clock, lanes = self.number("frequency"), lanes_per_core(architecture)
      peak = 2e-3 * self.number("num_cores") * lanes * clock
    return {"fp32": peak, **(peaks or _tensor_peaks(architecture, peak))}


def lanes_per_core(architecture: float) -> int:
  """Single-precision lanes of one of Grappler's `num_cores`."""
  return 192 if architecture < 4 else 128 if architecture < 6 else 64


def _tensor_peaks(architecture: float, peak: float) -> dict[str, float]:
  """Precision -> peak of the tensor cores of a compute capability."""
  known = [ratios for at, ratios in _TENSOR_CORES.items() if at <= architecture]
  return {name: r * peak for name, r in known[-1].items()} if known else {}


def _number(value: Any) -> float:
  """Converts a number, or NaN; protobuf's JSON has 64-bit integers as text."""
  try:
    return math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError):
    return math.nan
