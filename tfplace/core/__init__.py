"""Core types: graphs, clusters, problems, placements and evaluations."""

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.evaluation import Evaluation
from tfplace.core.op_graph import OpGraph, OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem

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
