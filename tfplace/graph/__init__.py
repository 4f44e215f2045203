"""Core types: graphs, clusters, problems, placements and evaluations."""

from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem

__all__ = [
  "Cluster",
  "Device",
  "Evaluation",
  "Link",
  "OpGraph",
  "OpSpec",
  "Placement",
  "Problem",
  "build_graph",
]
