"""Longest paths, transfers, disjoint sets and sparse rows, by hand."""

import numpy as np

from tfplace.graph import OpSpec, build_graph, paths
from tfplace.graph.csr import csr


def diamond():
  """o0 -> o1, o2 -> o3; o0 has two outputs, o3 reads both of o0's, too."""
  times = (1.0, 3.0, 4.0, 2.0)
  sizes = ([8.0, 6.0], [20.0], [10.0], [])
  ops = [
    OpSpec(f"o{i}", "Op", {"GPU": t}, s)
    for i, (t, s) in enumerate(zip(times, sizes, strict=True))
  ]
  edges = [(0, 0, 1), (0, 1, 2), (1, 0, 3), (2, 0, 3), (0, 0, 3), (0, -1, 3)]
  return build_graph("diamond", ops, edges)


def test_longest_paths_of_producers_are_the_earliest_starts():
  graph = diamond()
  # o3 waits for o2, which ends at 1 + 4.
  starts = paths.longest_paths(graph, graph.time_us["GPU"][graph.edge_src])
  assert starts.tolist() == [0.0, 1.0, 1.0, 5.0]


def test_upward_ranks_with_and_without_communication():
  graph = diamond()
  op_us = graph.time_us["GPU"]
  # o0: 1 + 4 (o2) + 2 (o3).
  assert paths.upward_ranks(graph, op_us).tolist() == [7.0, 5.0, 6.0, 2.0]
  # A byte takes 0.5 us, an edge 1 us more: o1: 3 + (10 + 1) + 2 = 16;
  # o2: 4 + (5 + 1) + 2 = 12; o0: 1 + max(4 + 1 + 16, 3 + 1 + 12) = 22.
  ranks = paths.upward_ranks(graph, op_us, us_per_byte=0.5, latency_us=1.0)
  assert ranks.tolist() == [22.0, 16.0, 12.0, 2.0]


def test_an_output_is_sent_once_to_each_device_that_reads_it():
  # o1 and o3 on d1, o2 on d0 with o0: o0's output 0 goes to d1 once, for two
  # readers; its control message and o2's output go there as well.
  edges, transfer_of = paths.transfers(diamond(), np.array([0, 1, 0, 1]))
  assert edges.tolist() == [5, 0, 3]  # by producer, output, destination
  assert transfer_of.tolist() == [1, -1, -1, 2, 1, 0]


def test_entries_are_sorted_by_row_and_keep_their_order():
  offsets, order = csr(np.array([2, 0, 2, 0]), 4)
  assert offsets.tolist() == [0, 2, 2, 4, 4]
  assert order.tolist() == [1, 3, 0, 2]


def test_entries_of_a_row_are_sorted_by_the_first_key_first():
  rows, first, second = np.zeros(4, int), [1, 0, 1, 0], [0, 5, 0, 4]
  _, order = csr(rows, 1, np.array(first), np.array(second))
  assert order.tolist() == [3, 1, 0, 2]
