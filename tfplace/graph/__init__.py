"""Graphs, clusters, placements and their file formats."""

from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.cluster_format import load_cluster, save_cluster
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.evaluation_format import load_evaluation, save_evaluation
from tfplace.graph.graph_format import load_graph, save_graph
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.placement_format import load_placement, save_placement
from tfplace.graph.problem import Problem
