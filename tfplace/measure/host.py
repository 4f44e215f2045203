"""What this host says of itself."""

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
