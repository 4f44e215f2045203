"""Each rule of docs/simulation.md on cases small enough to do by hand."""

import numpy as np
import pytest

from tests.testing.small_steps_by_hand import cluster_of, op, simulate, starts
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import build_graph
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator


class TestReadyTimesAndOrder:
  def test_ties_of_ready_time_go_by_position_not_by_order_of_edges(self):
    # c and b become ready together, when a ends at 1; b comes first in `ops`.
    s = simulate(
      [op("b", 5.0), op("c", 1.0), op("a", 1.0, [1.0])],
      [("a", 0, "c"), ("a", 0, "b")],
      [0, 0, 0],
      cluster_of(1),
    )
    assert starts(s) == {"a": 0.0, "b": 1.0, "c": 6.0}

  def test_an_earlier_ready_time_beats_an_earlier_position(self):
    # e keeps d1 until 10. c is ready at 2, b (earlier in `ops`) at 4.
    s = simulate(
      [op("b", 1.0), op("c", 1.0), op("x", 2.0), op("y", 2.0), op("e", 10.0)],
      [("x", -1, "c"), ("y", -1, "b")],
      [1, 1, 0, 0, 1],
      cluster_of(2),
    )
    assert starts(s) == {"x": 0.0, "y": 2.0, "e": 0.0, "c": 10.0, "b": 11.0}

  def test_the_idle_gap_follows_each_op_of_nonzero_time(self):
    # a: 0 to 1, idle to 1.5; z takes no time and leaves no gap; b: 1.5 to 3.5.
    s = simulate(
      [op("a", 1.0), op("z", 0.0), op("b", 2.0)],
      [],
      [0, 0, 0],
      cluster_of(1, overhead=0.5),
    )
    assert starts(s) == {"a": 0.0, "z": 1.5, "b": 1.5}
    assert s.step_time_us == 3.5  # not 4: the last gap is after the last end
    assert s.busy_us.tolist() == [3.0]

  def test_outputs_exist_before_the_idle_gap(self):
    # a ends at 1; its byte arrives at 2 although d0 is idle until 6.
    s = simulate(
      [op("a", 1.0, [1.0]), op("b", 1.0), op("c", 1.0)],
      [("a", 0, "b")],
      [0, 1, 0],
      cluster_of(2, overhead=5.0),
    )
    assert starts(s) == {"a": 0.0, "b": 2.0, "c": 6.0}


class TestTransfers:
  def test_an_output_goes_once_to_each_device_that_reads_it(self):
    # 4 bytes to d1 (two readers) and to d2, on links of their own.
    s = simulate(
      [op("a", 1.0, [4.0]), op("b", 1.0), op("c", 1.0), op("e", 1.0)],
      [("a", 0, "b"), ("a", 0, "c"), ("a", 0, "e")],
      [0, 1, 1, 2],
      cluster_of(3),
    )
    assert s.transfers.dst.tolist() == [1, 2]
    assert s.transfers.num_bytes.sum() == 8.0
    assert starts(s) == {"a": 0.0, "b": 5.0, "c": 6.0, "e": 5.0}

  def test_latency_delays_arrival_but_frees_the_channel(self):
    # Two messages of 2 bytes: sent 1-3 and 3-5, each arrives 10 later.
    s = simulate(
      [op("a", 1.0, [2.0, 2.0]), op("b", 1.0), op("c", 1.0)],
      [("a", 0, "b"), ("a", 1, "c")],
      [0, 1, 1],
      cluster_of(2, latency_us=10.0),
    )
    assert s.transfers.start_us.tolist() == [1.0, 3.0]
    assert s.transfers.arrival_us.tolist() == [13.0, 15.0]

  def test_gap_holds_the_channel_but_not_the_message(self):
    # Sent 1-3, arrives at 3; channel free at 3 + 4 = 7; second 7-9.
    s = simulate(
      [op("a", 1.0, [2.0, 2.0]), op("b", 1.0), op("c", 1.0)],
      [("a", 0, "b"), ("a", 1, "c")],
      [0, 1, 1],
      cluster_of(2, gap_us=4.0),
    )
    assert s.transfers.start_us.tolist() == [1.0, 7.0]
    assert s.transfers.arrival_us.tolist() == [3.0, 9.0]

  def test_links_that_name_a_channel_share_it(self):
    # d0 -> d2 and d1 -> d2 on one bus: both queued at 1, by position.
    ops = [op("b", 1.0, [3.0]), op("a", 1.0, [2.0]), op("c", 1.0)]
    edges = [("a", 0, "c"), ("b", 0, "c")]
    shared = simulate(ops, edges, [1, 0, 2], cluster_of(3, channel="bus"))
    own = simulate(ops, edges, [1, 0, 2], cluster_of(3))
    assert starts(shared)["c"] == 6.0  # b's 3 bytes 1-4, a's 2 bytes 4-6
    assert starts(own)["c"] == 4.0

  def test_channel_order_is_producer_then_output_then_destination(self):
    # All queued at 1 on one channel, 1 us each. Control (-1) before output 0.
    ops = [op("a", 1.0, [1.0]), op("b", 1.0, [1.0])]
    ops += [op(f"r{i}", 0.0) for i in range(3)]
    edges = [("b", 0, "r0"), ("a", 0, "r2"), ("a", 0, "r1"), ("a", -1, "r1")]
    s = simulate(
      ops, edges, [0, 1, 2, 2, 3], cluster_of(4, channel="x", gap_us=1.0)
    )
    # At 1: a's control to d2 (free at 2), a's output to d2 (2-3, free at 4),
    # a's output to d3 (4-5, free at 6), b's output to d2 (6-7).
    columns = ("src_op", "output", "dst", "start_us")
    rows = zip(
      *(getattr(s.transfers, c).tolist() for c in columns), strict=True
    )
    assert sorted(rows) == [
      (0, -1, 2, 1.0),
      (0, 0, 2, 2.0),
      (0, 0, 3, 4.0),
      (1, 0, 2, 6.0),
    ]

  def test_an_earlier_queue_time_beats_an_earlier_producer(self):
    # b's 5 bytes hold the channel 1-6; c (queued at 2) goes before a (at 3).
    ops = [op("a", 3.0, [1.0]), op("b", 1.0, [5.0]), op("c", 2.0, [1.0])]
    ops += [op("r", 1.0)]
    edges = [("a", 0, "r"), ("b", 0, "r"), ("c", 0, "r")]
    s = simulate(ops, edges, [0, 1, 2, 3], cluster_of(4, channel="x"))
    moves = s.transfers
    by_op = dict(
      zip(moves.src_op.tolist(), moves.start_us.tolist(), strict=True)
    )
    assert by_op == {1: 1.0, 2: 6.0, 0: 7.0}

  def test_control_edges_are_one_message_of_no_bytes(self):
    # Two control edges to d1: one message, latency 3, nothing moved.
    s = simulate(
      [op("a", 1.0, [9.0]), op("b", 1.0), op("c", 1.0)],
      [("a", -1, "b"), ("a", -1, "c")],
      [0, 1, 1],
      cluster_of(2, latency_us=3.0),
    )
    assert s.transfers.output.tolist() == [-1]
    assert s.transfers.num_bytes.tolist() == [0.0]
    assert starts(s)["b"] == 4.0

  def test_placeto_cluster(self):
    # 7600 B/us, gap 25, overhead 5.7, one channel per source device. a: 0-10;
    # b: 15.7-25.7. a's 76000 bytes go 10-20, the channel is free at 45, b's
    # 7600 bytes go 45-46. c reads both: 46-66. b's 25.7 + 5.7 idle is unseen.
    cluster = Cluster(
      "placeto",
      tuple(Device(f"d{i}", "GPU", op_overhead_us=5.7) for i in range(2)),
      (
        Link("d0", "d1", 7600.0, gap_us=25.0, channel="from d0"),
        Link("d1", "d0", 7600.0, gap_us=25.0, channel="from d1"),
      ),
    )
    s = simulate(
      [op("a", 10.0, [76000.0]), op("b", 10.0, [7600.0]), op("c", 20.0)],
      [("a", 0, "c"), ("b", 0, "c")],
      [0, 0, 1],
      cluster,
    )
    assert starts(s) == {"a": 0.0, "b": 15.7, "c": 46.0}
    assert s.step_time_us == 66.0


class TestOneInstant:
  def test_a_lower_device_acts_first(self):
    # At 0, d0 runs z (no time); its message makes w ready at 0, before d1
    # chooses: w comes before y in `ops`.
    ops = [op("z", 0.0), op("w", 2.0), op("y", 3.0)]
    s = simulate(ops, [("z", -1, "w")], [0, 1, 1], cluster_of(2))
    assert starts(s) == {"z": 0.0, "w": 0.0, "y": 2.0}

  def test_after_every_start_the_lowest_device_is_asked_again(self):
    # d1 runs z at 0, which makes w on d0 ready; d0 starts it before d1 (free,
    # z took no time) goes on with v; v's reader u would else beat w.
    ops = [op("u", 2.0), op("v", 0.0), op("z", 0.0), op("w", 3.0)]
    edges = [("z", -1, "w"), ("v", -1, "u"), ("z", -1, "v")]
    s = simulate(ops, edges, [0, 1, 1, 0], cluster_of(2))
    assert starts(s) == {"z": 0.0, "w": 0.0, "v": 0.0, "u": 3.0}

  def test_completions_come_before_starts(self):
    # x ends at 2 on d1 and feeds b; a ends at 2 on d0. When d0 chooses at 2,
    # b is ready at 2, as c is, and comes first.
    ops = [op("b", 1.0), op("c", 1.0), op("a", 2.0), op("x", 2.0)]
    s = simulate(
      ops, [("x", -1, "b"), ("a", -1, "c")], [0, 0, 0, 1], cluster_of(2)
    )
    assert starts(s)["b"] == 2.0 and starts(s)["c"] == 3.0


class TestMemory:
  def peaks(self, *args):
    return simulate(*args).peak_memory_bytes.tolist()

  def test_temporary_and_unread_bytes_are_held_while_the_op_runs(self):
    # a: 3 temporary + 4 unread; b the same, after a: 7, never 14.
    ops = [op("a", 1.0, [4.0], temp=3.0), op("b", 1.0, [4.0], temp=3.0)]
    assert self.peaks(ops, [], [0, 0], cluster_of(1)) == [7.0]

  def test_an_output_is_held_until_its_last_reader_ends(self):
    # a's 10 until c ends; b's 20 until c ends; c's own 5: 35 while c runs.
    # e's 30 come when a and b are gone.
    ops = [op("a", 1.0, [10.0]), op("b", 1.0, [20.0])]
    ops += [op("c", 1.0, [5.0]), op("e", 1.0, [30.0])]
    edges = [("a", 0, "c"), ("b", 0, "c"), ("c", 0, "e")]
    assert self.peaks(ops, edges, [0] * 4, cluster_of(1)) == [35.0]

  def test_an_output_is_held_until_its_last_transfer_has_arrived(self):
    # a's 4 bytes: sent 1-5, latency 2, so d0 has them until 7. b (ready when
    # a ends) runs 1-3 with 8 temporary bytes: 12 on d0.
    # With c on d0 as well there is no transfer: 8 while b runs.
    ops = [op("a", 1.0, [4.0]), op("b", 2.0, temp=8.0), op("c", 1.0)]
    edges = [("a", 0, "c"), ("a", -1, "b")]
    cluster = cluster_of(2, latency_us=2.0)
    assert self.peaks(ops, edges, [0, 0, 1], cluster) == [12.0, 4.0]

  def test_a_copy_is_held_from_the_start_of_its_transfer(self):
    # a's 4 bytes go to d1 from 1 to 5; b runs there 0-2 with 8: 12 at 1-2.
    ops = [op("a", 1.0, [4.0]), op("b", 2.0, temp=8.0), op("c", 1.0)]
    edges = [("a", 0, "c")]
    assert self.peaks(ops, edges, [0, 1, 1], cluster_of(2)) == [4.0, 12.0]

  def test_a_copy_that_waits_for_its_channel_is_not_there_yet(self):
    # Queued at 1 behind 9 bytes (1-10): a's 4 bytes reach d1 from 10. b is
    # over at 9, so d1 has 9 + 8 (b's) first, then 9 + 4 (c reads both).
    ops = [op("x", 1.0, [9.0]), op("a", 1.0, [4.0])]
    ops += [op("b", 9.0, temp=8.0), op("c", 1.0)]
    edges = [("x", 0, "c"), ("a", 0, "c")]
    s = simulate(ops, edges, [0, 2, 1, 1], cluster_of(3, channel="bus"))
    assert s.peak_memory_bytes.tolist() == [9.0, 17.0, 4.0]

  def test_a_copy_is_held_until_its_last_reader_there_ends(self):
    # a's 4 bytes arrive at 5; c 5-6, e 6-7 (both read them) and f 7-8 with
    # 3 temporary bytes: 4 + 2 while e runs, 3 while f does.
    ops = [op("a", 1.0, [4.0]), op("c", 1.0), op("e", 1.0, temp=2.0)]
    ops += [op("f", 1.0, temp=3.0)]
    edges = [("a", 0, "c"), ("a", 0, "e"), ("e", -1, "f")]
    assert self.peaks(ops, edges, [0, 1, 1, 1], cluster_of(2)) == [4.0, 6.0]

  def test_frees_come_before_allocations_at_one_instant(self):
    # a ends at 1 and frees 10; b starts at 1 with 10: never 20.
    ops = [op("a", 1.0, temp=10.0), op("b", 1.0, temp=10.0)]
    assert self.peaks(ops, [], [0, 0], cluster_of(1)) == [10.0]

  def test_what_lives_for_no_time_does_not_count(self):
    # z1 and z2 take no time: their bytes come and go at 0. a: 1 byte.
    ops = [op("z1", 0.0, [50.0], temp=60.0), op("z2", 0.0), op("a", 1.0, [1.0])]
    assert self.peaks(ops, [("z1", 0, "z2")], [0] * 3, cluster_of(1)) == [1.0]

  def test_an_output_of_no_time_counts_while_its_reader_runs(self):
    ops = [op("z", 0.0, [50.0], temp=60.0), op("a", 1.0, [1.0])]
    assert self.peaks(ops, [("z", 0, "a")], [0] * 2, cluster_of(1)) == [51.0]

  @pytest.mark.parametrize("memory, feasible", [(35.0, True), (34.0, False)])
  def test_infeasible_is_above_the_limit_and_still_timed(
    self, memory, feasible
  ):
    graph = build_graph(
      "g", [op("a", 1.0, [30.0]), op("b", 2.0, [5.0])], [(0, 0, 1)]
    )
    problem = Problem(graph, cluster_of(1, memory=memory))
    (result,) = Simulator(problem).evaluate(np.zeros((1, 2), np.int32))
    assert result.feasible is feasible
    assert result.step_time_us == 3.0
