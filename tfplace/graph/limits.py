"""Memory limits of a user's own, such as `{"GPU:0": "10GiB"}`.

They stand in the place of what a cluster says of its devices: to leave room
for others, or because the description only guessed.
"""

import contextlib
import dataclasses
import numbers
import re
from collections.abc import Mapping

from tfplace.errors import FormatError
from tfplace.graph.cluster import Cluster

_UNITS = {
  "": 1,
  "B": 1,
  **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
  **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def with_max_memory(
  cluster: Cluster, limits: Mapping[str, str | float]
) -> Cluster:
  """The cluster with other memory sizes.

  Args:
    cluster: devices that `limits` does not name keep their size.
    limits: device -> bytes, or a size with a unit: "10GiB" is 10 * 2**30
      bytes, "10GB" is 10**10; a device of 0 holds nothing. A device is named
      in full, or by its end where that fits one only, as "GPU:0" does.

  Raises:
    FormatError: no such device, or no size; names it.
  """
  memory = {find_device(cluster, k): num_bytes(v) for k, v in limits.items()}
  devices = tuple(
    dataclasses.replace(d, memory_bytes=memory.get(d.name, d.memory_bytes))
    for d in cluster.devices
  )
  return dataclasses.replace(cluster, devices=devices)


def find_device(cluster: Cluster, name: str) -> str:
  """The full name of the device that is meant by `name`.

  Raises:
    FormatError: the cluster has none, or several.
  """
  names = [device.name for device in cluster.devices]
  if name in names:
    return name
  end = name if str(name).startswith("/") else f"/device:{name}"
  found = [full for full in names if full.endswith(end)]
  if len(found) != 1:
    raise FormatError(
      f"{name!r} names {len(found) or 'no'} device{'s' * (len(found) != 1)} of"
      f" cluster {cluster.name!r}; it has {', '.join(names)}",
      device=str(name),
    )
  return found[0]


def num_bytes(size: str | float) -> float:
  """Bytes of a number or of a text such as "10GiB", "1.5 GB" or "4096".

  Raises:
    FormatError: neither; a unit in lower case is refused, since it may mean
      bits.
  """
  if isinstance(size, str):
    match = _SIZE.fullmatch(size.strip())
    if match and match[2] in _UNITS:
      return float(match[1]) * _UNITS[match[2]]
  elif isinstance(size, numbers.Real) and not isinstance(size, bool):
    with contextlib.suppress(OverflowError):
      if size >= 0:
        return float(size)
  raise FormatError(
    f"{size!r:.60} is no memory size; write bytes, or a number and one of"
    f" {', '.join(u for u in _UNITS if u)}"
  )
