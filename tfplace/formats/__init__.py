"""JSON file formats of graphs, clusters, placements and their figures."""

from tfplace.formats.cluster import load_cluster, save_cluster
from tfplace.formats.graph import load_graph, save_graph
from tfplace.formats.results import (
  load_assignments,
  load_evaluation,
  load_placement,
  save_estimate,
  save_evaluation,
  save_placement,
)

__all__ = [
  "load_assignments",
  "load_cluster",
  "load_evaluation",
  "load_graph",
  "load_placement",
  "save_cluster",
  "save_estimate",
  "save_evaluation",
  "save_graph",
  "save_placement",
]
