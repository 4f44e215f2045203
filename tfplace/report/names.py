"""Human-readable names and lists of names."""

from collections.abc import Sequence

from tfplace.core.cluster import Cluster


def short_names(names: Sequence[str]) -> list[str]:
  """Strips common prefixes of device names, unless they become ambiguous."""
  parts = [name.strip("/").split("/") for name in names]
  shortest = min(map(len, parts), default=1)
  shared = 0
  while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
    shared += 1
  short = ["/".join(p[shared:]).replace("device:", "") for p in parts]
  return short if len(set(short)) == len(names) else list(names)


def named_devices(cluster: Cluster) -> list[str]:
  """Returns short names of devices: "GPU:0", or "GPU:0 (v100)" of `GPU-v100`.

  The kind is named where devices of a type are of several kinds.
  """
  short = short_names([device.name for device in cluster.devices])
  return [
    f"{name} ({label})" if label else name
    for name, label in zip(short, cluster.kind_labels, strict=True)
  ]


def listed(parts: Sequence[str]) -> str:
  """Joins ["a", "b", "c"] to "a, b and c"."""
  if len(parts) < 2:
    return "".join(parts)
  return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shorten(name: str, limit: int = 64) -> str:
  """Shortens a long name by cutting out its middle."""
  if len(name) <= limit:
    return name
  keep = (limit - 1) // 2
  return f"{name[: limit - 1 - keep]}\N{HORIZONTAL ELLIPSIS}{name[-keep:]}"
