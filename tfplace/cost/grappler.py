"""Hardware of devices, and times of ops by Grappler's analytical estimator.

Grappler adds the time of an op's multiply-adds at peak rate and of its bytes at
the memory bandwidth
(`tensorflow/core/grappler/costs/op_level_cost_estimator.cc`). Constants, reads
and reshapes take no time. A device can describe its hardware in
`extra["hardware"]`, as presets do, by fields of TensorFlow's `DeviceProperties`
(frequency in MHz, bandwidth in KB/s, memory in bytes). Devices of one kind
share times, so they need equal descriptions.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf.device_properties_pb2 import (
  DeviceProperties,
  NamedDevice,
)
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from tfplace.errors import ExtractionError, ProblemError, shown
from tfplace.graph.cluster import Cluster
from tfplace.hardware import gpu_hardware
from tfplace.hardware.gpu_hardware import GpuHardware
from tfplace.hardware.hardware import GPUS, HOSTS

# Hardware of devices without a description, by type: a DGX-1 and its V100.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
  "CPU": HOSTS["dgx-1"].hardware,
  "GPU": GPUS["v100"].hardware,
}


class Hardware(NamedTuple):
  """Hardware of the devices of one kind.

  Attributes:
    properties: hardware as Grappler takes it.
    gpu: fields that kernel times depend on; None for a CPU.
  """

  properties: DeviceProperties
  gpu: GpuHardware | None


def described_by_kind(cluster: Cluster) -> dict[str, Hardware]:
  """Maps device kinds, in order of the devices, to hardware.

  Raises:
    ProblemError: two devices of a kind differ; a description has unknown fields
      or lacks type, frequency, cores or bandwidth; or a device without one is
      of another kind than "CPU" and "GPU".
  """
  result: dict[str, Hardware] = {}
  described_by: dict[str, str] = {}
  for device in cluster.devices:
    described = device.extra.get("hardware", DEFAULTS.get(device.kind))
    if described is None:
      raise ProblemError(
        f"device {device.name!r} of kind {device.kind!r} does not describe its"
        f" hardware; only {' and '.join(DEFAULTS)} have a default",
        device=device.name,
      )
    hardware = _parse(device.name, described)
    known = result.setdefault(device.kind, hardware)
    first = described_by.setdefault(device.kind, device.name)
    if known != hardware:
      raise ProblemError(
        f"devices {first!r} and {device.name!r} are both of kind"
        f" {device.kind!r} but describe different hardware",
        device=device.name,
      )
  return result


def _parse(name: str, described: Any) -> Hardware:
  _check_fields(name, described)
  described = _with_cores(name, described)
  fields = {k: v for k, v in described.items() if k not in gpu_hardware.FIELDS}
  try:
    properties = json_format.ParseDict(fields, DeviceProperties())
  except Exception as error:  # protobuf promises no class of its own
    raise ProblemError(
      f"device {name!r}: its hardware is not understood: {error}", device=name
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
  if properties.type == "CPU":
    return Hardware(properties, None)
  if "architecture" not in properties.environment:
    raise ProblemError(
      f"device {name!r}: the environment of its hardware lacks 'architecture',"
      " the compute capability",
      device=name,
    )
  return Hardware(properties, gpu_hardware.gpu_hardware(name, described))


def _check_fields(name: str, described: Any) -> None:
  if not isinstance(described, Mapping):
    raise ProblemError(
      f"device {name!r}: its hardware {shown(described)} is not understood: it"
      " must be an object",
      device=name,
    )
  of_proto = DeviceProperties.DESCRIPTOR.fields
  known = {f.name for f in of_proto} | {*gpu_hardware.FIELDS}
  for field in described:
    if field not in known and field not in {f.json_name for f in of_proto}:
      raise ProblemError(
        f"device {name!r}: its hardware is not understood: unknown field"
        f" {shown(field)}; choose from {', '.join(sorted(known))}",
        device=name,
      )


def _with_cores(name: str, described: Mapping[str, Any]) -> dict[str, Any]:
  """Adds the cores and clock that Grappler takes, if both are missing.

  They follow from the peak and the multiprocessors of a data sheet, because
  Grappler assumes a fixed number of lanes per core.
  """
  result = dict(described)
  if result.get("type") != "GPU" or "peak_gflops" not in result:
    return result
  if "num_cores" in result or "frequency" in result:
    return result
  gpu = gpu_hardware.gpu_hardware(
    name, {"num_cores": 1, "frequency": 1, **result}
  )
  lanes = gpu_hardware.lanes_per_core(gpu.architecture)
  clock = gpu.peak_flops_per_us["fp32"] / (2 * lanes * gpu.multiprocessors)
  return {**result, "num_cores": gpu.multiprocessors, "frequency": round(clock)}


# Only the properties matter; for a GPU's name, Grappler looks for a driver.
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
# Grappler rejects graphs that exceed the device's memory.
_NO_LIMIT = 2**62


def op_times_us(
  item: grappler_item.Item, hardware: DeviceProperties
) -> dict[str, float]:
  """Maps node names to microseconds; nodes without cost are absent.

  Args:
    item: result of `make_item` for a flat graph of known shapes.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  slow, factor = _slowed(hardware)
  device = NamedDevice(name=_DEVICE, properties=slow)
  with grappler_cluster.Provision(devices=[device]) as cluster, _rejections():
    performances, _, _ = cluster.MeasureCosts(item)
  return {p.node: p.compute_cost * 1e-3 / factor for p in performances}


def make_item(graph_def: tf.compat.v1.GraphDef) -> grappler_item.Item:
  """Converts a graph for Grappler: on one device, with every node fetched.

  Raises:
    ExtractionError: Grappler rejects the graph.
  """
  meta_graph = meta_graph_pb2.MetaGraphDef()
  meta_graph.graph_def.CopyFrom(graph_def)
  for node in meta_graph.graph_def.node:
    node.device = _DEVICE
  names = [node.name for node in graph_def.node]
  meta_graph.collection_def["train_op"].node_list.value.extend(names)
  with _rejections():
    return grappler_item.Item(meta_graph)


@contextlib.contextmanager
def _rejections() -> Iterator[None]:
  try:
    yield
  except Exception as error:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(f"Grappler rejects the graph: {first}") from error


def _slowed(
  hardware: DeviceProperties,
) -> tuple[DeviceProperties, float]:
  """Returns slower hardware and the factor.

  Grappler rounds down to whole microseconds, so small ops would take no time.
  """
  factor = float(hardware.frequency * hardware.num_cores)
  slow = DeviceProperties()
  slow.CopyFrom(hardware)
  if hardware.type == "GPU":
    architecture = float(hardware.environment["architecture"])
    factor *= gpu_hardware.lanes_per_core(architecture) / 32
    slow.environment["architecture"] = "2"  # of 32 lanes; "10.0" is below "3"
  slow.frequency = slow.num_cores = 1
  slow.memory_size = _NO_LIMIT
  slow.bandwidth = max(1, round(hardware.bandwidth / factor))
  return slow, factor
