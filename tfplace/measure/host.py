"""What this host says of itself."""

import platform

from tfplace.errors import MeasurementError


def memory_bytes() -> float:
  """The host's memory.

  Raises:
    MeasurementError: the kernel does not say.
  """
  try:
    with open("/proc/meminfo", encoding="ascii") as info:
      fields = dict(line.split(":", 1) for line in info)
    return float(fields["MemTotal"].split()[0]) * 1024
  except (OSError, KeyError, ValueError) as error:
    raise MeasurementError(
      f"/proc/meminfo does not say the host's memory: {error}"
    ) from error


def cpu_name() -> str:
  """The processor's name, or at least its architecture."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as info:
      for line in info:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
          return value.strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()
