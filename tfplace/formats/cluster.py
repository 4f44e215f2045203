"""Cluster files (`tfplace.cluster.v1`)."""

import math
import os
from collections.abc import Mapping
from typing import Any

from tfplace.core.cluster import MESSAGE_COSTS, Cluster, Device, Link
from tfplace.core.presets import cluster_preset
from tfplace.errors import FormatError
from tfplace.formats import json_file

FORMAT = "tfplace.cluster.v1"
MAX_DEVICES = 4096
_CLUSTER_KEYS = frozenset({"format", "name", "devices", "links"})
_DEVICE_KEYS = frozenset({"name", "kind", "memory_bytes", "op_overhead_us"})
_LINK_KEYS = frozenset(
  {"src", "dst", "bandwidth_bytes_per_us", "latency_us", "gap_us", "channel"}
).union(MESSAGE_COSTS)


def load_cluster(path: json_file.Path) -> Cluster:
  """Reads a cluster file; a FormatError names the file, element and value."""
  data = json_file.read_json(path, FORMAT)
  with json_file.errors_naming(path):
    return cluster_from_json(data)


def save_cluster(cluster: Cluster, path: json_file.Path) -> None:
  """Writes a cluster file atomically; raises FormatError if it cannot."""
  json_file.write_json(path, cluster_to_json(cluster))


def cluster_from_json(data: Mapping[str, Any]) -> Cluster:
  """Converts a parsed file; a FormatError names the element and value."""
  required, as_list = json_file.required, json_file.as_list
  name = json_file.as_name(required(data, "name", "cluster"), "name")
  devices = as_list(required(data, "devices", "cluster"), "devices")
  if len(devices) > MAX_DEVICES:
    raise FormatError(
      f"devices: {len(devices)} elements, at most {MAX_DEVICES}"
    )
  links = as_list(required(data, "links", "cluster"), "links")
  return Cluster(
    name=name,
    devices=tuple(_device(d, f"devices[{i}]") for i, d in enumerate(devices)),
    links=tuple(_link(raw, f"links[{i}]") for i, raw in enumerate(links)),
    extra=json_file.unknown_keys(data, _CLUSTER_KEYS, "cluster"),
  )


def _device(raw: Any, where: str) -> Device:
  device = json_file.as_object(raw, where)
  name = json_file.as_name(json_file.required(device, "name", where), where)
  where = f"{where} {name!r}"
  memory = device.get("memory_bytes")
  return Device(
    name=name,
    kind=json_file.as_name(
      json_file.required(device, "kind", where), f"{where}: kind"
    ),
    memory_bytes=math.inf
    if memory is None
    else json_file.as_number(memory, f"{where}: memory_bytes", math.inf),
    op_overhead_us=json_file.as_number(
      device.get("op_overhead_us", 0), f"{where}: op_overhead_us"
    ),
    extra=json_file.unknown_keys(device, _DEVICE_KEYS, where),
  )


def _link(raw: Any, where: str) -> Link:
  link = json_file.as_object(raw, where)
  ends = [
    json_file.as_name(json_file.required(link, end, where), f"{where}: {end}")
    for end in ("src", "dst")
  ]
  bandwidth = json_file.as_number(
    json_file.required(link, "bandwidth_bytes_per_us", where),
    f"{where}: bandwidth_bytes_per_us",
    most=math.inf,
  )
  if bandwidth * json_file.MAX_SUMMAND < 1:
    raise FormatError(
      f"{where}: bandwidth_bytes_per_us is {bandwidth:g}, less than"
      f" {1 / json_file.MAX_SUMMAND:g}"
    )
  channel = link.get("channel")
  if channel is not None:
    channel = json_file.as_name(channel, f"{where}: channel")
  return Link(
    src=ends[0],
    dst=ends[1],
    bandwidth_bytes_per_us=bandwidth,
    latency_us=json_file.as_number(
      link.get("latency_us", 0), f"{where}: latency_us"
    ),
    gap_us=json_file.as_number(link.get("gap_us", 0), f"{where}: gap_us"),
    channel=channel,
    **{
      field: json_file.as_number(link.get(field, 0), f"{where}: {field}")
      for field in MESSAGE_COSTS
    },
    extra=json_file.unknown_keys(link, _LINK_KEYS, where),
  )


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
  """Converts a cluster to JSON, without unlimited sizes and default values."""
  return {
    "format": FORMAT,
    "name": cluster.name,
    "devices": [_device_to_json(device) for device in cluster.devices],
    "links": [_link_to_json(link) for link in cluster.links],
    **cluster.extra,
  }


def _device_to_json(device: Device) -> dict[str, Any]:
  number = json_file.plain_number
  result: dict[str, Any] = {"name": device.name, "kind": device.kind}
  if math.isfinite(device.memory_bytes):
    result["memory_bytes"] = number(device.memory_bytes)
  result["op_overhead_us"] = number(device.op_overhead_us)
  return {**result, **device.extra}


def _link_to_json(link: Link) -> dict[str, Any]:
  number = json_file.plain_number
  result: dict[str, Any] = {
    "src": link.src,
    "dst": link.dst,
    "bandwidth_bytes_per_us": number(link.bandwidth_bytes_per_us),
    "latency_us": number(link.latency_us),
    "gap_us": number(link.gap_us),
  }
  if link.channel is not None:
    result["channel"] = link.channel
  costs = {field: number(getattr(link, field)) for field in MESSAGE_COSTS}
  result.update((field, cost) for field, cost in costs.items() if cost)
  return {**result, **link.extra}


def find_cluster(cluster: Any) -> Cluster:
  """Resolves any cluster argument of the API to a cluster.

  Args:
    cluster: a `Cluster`, the name of a preset, or the path of a file (a string
      that ends in .json or .json.gz, or any `os.PathLike`).

  Raises:
    FormatError: the preset, the file or the type of the argument is invalid.
  """
  if isinstance(cluster, Cluster):
    return cluster
  if isinstance(cluster, os.PathLike):
    return load_cluster(cluster)
  if isinstance(cluster, str):
    is_file = cluster.endswith((".json", ".json.gz"))
    return load_cluster(cluster) if is_file else cluster_preset(cluster)
  raise FormatError(
    "a cluster is a Cluster, the name of a preset or a file, not"
    f" {cluster!r:.60}"
  )
