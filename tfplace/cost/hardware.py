"""What the devices of a cluster are made of, for Grappler's estimator.

A device may describe its hardware in `extra["hardware"]`, as the presets do:
the fields of TensorFlow's `DeviceProperties` (frequency in MHz, bandwidth in
KB/s, memory in bytes). Devices of one kind share their times, so they must
share the description.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.errors import ProblemError
from tfplace.graph import presets
from tfplace.graph.cluster import Cluster

# By type, for a device that says nothing: the presets' host, and its V100.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
  "CPU": presets.cpu_hardware(presets.HOSTS["dgx-1"]),
  "GPU": presets.gpu_hardware(presets.GPUS["v100"]),
}


def hardware_by_kind(cluster: Cluster) -> dict[str, DeviceProperties]:
  """Device kind -> its hardware, in order of the devices.

  Raises:
    ProblemError: two devices of a kind differ, a description is not of known
      fields, lacks type, frequency, cores or bandwidth, or a kind without one
      is neither "CPU" nor "GPU".
  """
  result: dict[str, DeviceProperties] = {}
  described_by: dict[str, str] = {}
  for device in cluster.devices:
    described = device.extra.get("hardware", DEFAULTS.get(device.kind))
    if described is None:
      raise ProblemError(
        f"device {device.name!r} of kind {device.kind!r} does not describe its"
        f" hardware; only {' and '.join(DEFAULTS)} have a default",
        device=device.name,
      )
    properties = _parse(device.name, described)
    known = result.setdefault(device.kind, properties)
    first = described_by.setdefault(device.kind, device.name)
    if known != properties:
      raise ProblemError(
        f"devices {first!r} and {device.name!r} are both of kind"
        f" {device.kind!r} but describe different hardware",
        device=device.name,
      )
  return result


def _parse(name: str, described: Any) -> DeviceProperties:
  try:
    properties = json_format.ParseDict(described, DeviceProperties())
  except Exception as error:  # protobuf promises no class of its own
    raise ProblemError(
      f"device {name!r}: its hardware {described!r} is not understood: {error}",
      device=name,
    ) from error
  if properties.type not in DEFAULTS:
    raise ProblemError(
      f"device {name!r}: hardware of type {properties.type!r}; choose from"
      f" {', '.join(DEFAULTS)}",
      device=name,
    )
  for field in ("frequency", "num_cores", "bandwidth"):
    if getattr(properties, field) <= 0:
      raise ProblemError(
        f"device {name!r}: {field} of its hardware must be above 0, not"
        f" {getattr(properties, field)}",
        device=name,
      )
  if properties.type == "GPU" and "architecture" not in properties.environment:
    raise ProblemError(
      f"device {name!r}: the environment of its hardware lacks 'architecture',"
      " the compute capability",
      device=name,
    )
  return properties
