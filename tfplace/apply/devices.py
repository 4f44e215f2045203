"""Names of this process's logical devices.

Device names are resolved here, so that a plan that names a device which this
process lacks fails before anything is changed. Not for other hosts.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfplace.errors import ApplyError
from tfplace.graph.cluster import Cluster

_LOCAL = "/job:localhost/replica:0/task:0"


def logical_names(kind: str) -> list[str]:
  """Full names of this process's logical devices of a kind ("GPU")."""
  return [_LOCAL + d.name for d in tf.config.list_logical_devices(kind)]


def short_name(name: str) -> str:
  """ "GPU:1" for a full device name, for messages."""
  return name.rpartition("/device:")[2]


def canonical_device(name: str, what: str) -> str:
  """The full name of one of this process's logical devices.

  Args:
    name: such as "CPU:1", "/device:GPU:0" or a full name.
    what: who asks, for the message, such as "op 'dense/MatMul'".

  Raises:
    ApplyError: the name is no device name, or this process has no such device.
  """
  full = _full_name(name)
  known = [_LOCAL + d.name for d in tf.config.list_logical_devices()]
  if full is None or full not in known:
    raise ApplyError(
      f"{what} is placed on {name!r}, which this process does not have; its"
      f" logical devices are {', '.join(known)}",
      device=str(name),
    )
  return full


def full_names(assignments: Mapping[str, str]) -> dict[str, str]:
  """`assignments` with full device names, where they are TensorFlow's; the
  devices may be those of another process.
  """
  return {op: _full_name(name) or name for op, name in assignments.items()}


def _full_name(name: Any) -> str | None:
  if not isinstance(name, str):
    return None
  text = name if name.startswith("/") else f"/device:{name}"
  try:
    spec = tf.DeviceSpec.from_string(text)
    default = tf.DeviceSpec.from_string(_LOCAL)
    return default.make_merged_spec(spec).to_string()
  except ValueError:
    return None


def canonical_devices(assignments: Mapping[str, str]) -> dict[str, str]:
  """`assignments` (op or layer -> device) with full device names.

  Raises:
    ApplyError: as `canonical_device`; names the op or layer.
  """
  full: dict[str, str] = {}
  for op, name in assignments.items():
    if name not in full:
      full[name] = canonical_device(name, repr(op))
  return {op: full[name] for op, name in assignments.items()}


def check_cluster(cluster: Cluster) -> None:
  """Every device of `cluster` is a logical device of this process.

  Raises:
    ApplyError: one is not; names it.
  """
  for device in cluster.devices:
    canonical_device(device.name, f"a part of cluster {cluster.name!r}")


def default_device() -> str:
  """Where TensorFlow runs what nobody places: its first GPU, else CPU:0."""
  kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
  return f"{_LOCAL}/device:{kind}:0"
