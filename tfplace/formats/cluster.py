"""Cluster files (`tfplace.cluster.v1`)."""

import os
from collections.abc import Mapping
from typing import Any

from tfplace.errors import FormatError
from tfplace.formats import codec, json_file
from tfplace.graph.cluster import Cluster
from tfplace.hardware.presets import cluster_preset

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
