"""Cluster files (`tfplace.cluster.v1`)."""

from collections.abc import Mapping
from typing import Any

from tfplace.formats import codec, json_file
from tfplace.graph.cluster import Cluster

FORMAT = "tfplace.cluster.v1"
MAX_DEVICES = 4096


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
  json_file.elements(data, "devices", "cluster", MAX_DEVICES)
  json_file.elements(data, "links", "cluster", MAX_DEVICES**2)
  return codec.from_json(Cluster, data, "cluster")


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
  """Converts a cluster to JSON, without unlimited sizes and default values."""
  return {
    "format": FORMAT,
    "name": cluster.name,
    "devices": codec.to_json(cluster.devices, sparse=True),
    "links": codec.to_json(cluster.links, sparse=True),
    **cluster.extra,
  }
