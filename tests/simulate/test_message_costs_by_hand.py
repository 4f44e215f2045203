"""Communication overhead on the endpoint devices (rule 3), by hand."""

from tests.testing.small_steps_by_hand import cluster_of, op, simulate, starts
from tfplace.simulate import critical_path


class TestSendsAndReceives:
  def test_an_op_ends_after_its_sends_and_stays_on_its_device(self):
    # a: 0-2, sends 4 bytes: 1 + 4 * 0.5 = 3, so it ends at 5. b runs on d0
    # from 5 (no overhead), c's input leaves at 5 and arrives at 9.
    s = simulate(
      [op("a", 2.0, [4.0]), op("b", 1.0), op("c", 1.0)],
      [("a", 0, "b"), ("a", 0, "c")],
      [0, 0, 1],
      cluster_of(2, send_us=1.0, send_us_per_byte=0.5),
    )
    assert starts(s) == {"a": 0.0, "b": 5.0, "c": 9.0}
    assert s.op_end_us.tolist() == [5.0, 6.0, 10.0]
    assert s.transfers.send_start_us.tolist() == [2.0]
    assert s.transfers.send_end_us.tolist() == [5.0]
    assert s.busy_us.tolist() == [3.0, 1.0]  # sends do not count

  def test_transfers_are_sent_in_order_before_any_starts(self):
    # a's control to d2 (1), output 0 to d1 (1 + 2) and d2 (3): 7 after 1 us.
    s = simulate(
      [op("a", 1.0, [2.0]), op("b", 1.0), op("c", 1.0), op("e", 1.0)],
      [("a", 0, "c"), ("a", 0, "b"), ("a", -1, "e")],
      [0, 1, 2, 2],
      cluster_of(3, send_us=1.0, send_us_per_byte=1.0),
    )
    assert s.op_end_us[0] == 8.0
    columns = ("output", "dst", "send_start_us", "send_end_us", "start_us")
    moves = (getattr(s.transfers, c).tolist() for c in columns)
    assert sorted(zip(*moves, strict=True)) == [
      (-1, 2, 1.0, 2.0, 8.0),
      (0, 1, 2.0, 5.0, 8.0),
      (0, 2, 5.0, 8.0, 8.0),
    ]

  def test_the_idle_gap_follows_the_sends_of_an_op_of_nonzero_time(self):
    # z (no time) sends for 2 and leaves no gap; a: 2-3, sends to 5, idle to 9.
    s = simulate(
      [op("z", 0.0), op("a", 1.0), op("b", 1.0), op("r", 1.0)],
      [("z", -1, "r"), ("a", -1, "r")],
      [0, 0, 0, 1],
      cluster_of(2, overhead=4.0, send_us=2.0),
    )
    assert starts(s) == {"z": 0.0, "a": 2.0, "b": 9.0, "r": 5.0}

  def test_a_receive_runs_on_the_destination_and_delays_its_ops(self):
    # a's 2 bytes arrive at 3; e holds d1 until 4. The receive, ready at 3,
    # takes 1 + 2 * 0.5 = 2: 4-6. Then f, ready at 4 by e, and c, ready at 6.
    s = simulate(
      [op("c", 1.0), op("a", 1.0, [2.0]), op("e", 4.0), op("f", 1.0)],
      [("a", 0, "c"), ("e", -1, "f")],
      [1, 0, 1, 1],
      cluster_of(2, recv_us=1.0, recv_us_per_byte=0.5),
    )
    assert starts(s) == {"c": 7.0, "a": 0.0, "e": 0.0, "f": 6.0}
    assert s.transfers.arrival_us.tolist() == [3.0]
    assert s.transfers.recv_start_us.tolist() == [4.0]
    assert s.transfers.recv_end_us.tolist() == [6.0]
    assert s.busy_us.tolist() == [1.0, 6.0]  # the receive does not count

  def test_of_what_becomes_ready_at_one_time_receives_come_first(self):
    # At 2 e ends, which readies f, and b's and a's messages arrive (a is
    # first in `ops`). Received 2-5 and 5-8; f is the earliest op, then c, h.
    ops = [op("f", 1.0), op("a", 2.0), op("b", 2.0), op("e", 2.0)]
    ops += [op("c", 1.0), op("h", 1.0)]
    edges = [("e", -1, "f"), ("b", -1, "c"), ("a", -1, "h")]
    cluster = cluster_of(4, recv_us=3.0)
    s = simulate(ops, edges, [1, 0, 2, 1, 1, 1], cluster)
    at = dict(
      zip(
        s.transfers.src_op.tolist(),
        s.transfers.recv_start_us.tolist(),
        strict=True,
      )
    )
    assert at == {1: 2.0, 2: 5.0}
    assert [starts(s)[name] for name in "fhc"] == [8.0, 9.0, 10.0]

  def test_a_message_of_no_bytes_is_received_where_that_costs(self):
    # 0 bytes at 1 us per byte: no receive, although d1 is busy until 4.
    ops = [op("a", 1.0), op("c", 1.0), op("e", 4.0), op("f", 1.0)]
    edges = [("a", -1, "c"), ("e", -1, "f")]
    by_byte = cluster_of(2, recv_us_per_byte=1.0)
    s = simulate(ops, edges, [0, 1, 1, 1], by_byte)
    assert starts(s)["c"] == 4.0
    assert s.transfers.recv_end_us.tolist() == [1.0]  # the arrival

  def test_one_receive_serves_all_readers_on_a_device(self):
    # Arrives at 1 + 2, received until 6, once; c and e run 6-7 and 7-8.
    s = simulate(
      [op("a", 1.0, [2.0]), op("c", 1.0), op("e", 1.0)],
      [("a", 0, "c"), ("a", 0, "e")],
      [0, 1, 1],
      cluster_of(2, recv_us=3.0),
    )
    assert starts(s) == {"a": 0.0, "c": 6.0, "e": 7.0}
    assert s.transfers.recv_end_us.tolist() == [6.0]

  def test_the_critical_path_goes_through_receives(self):
    # As above: e, the receive that waited for it, f (ready at 4), then c.
    s = simulate(
      [op("c", 1.0), op("a", 1.0, [2.0]), op("e", 4.0), op("f", 1.0)],
      [("a", 0, "c"), ("e", -1, "f")],
      [1, 0, 1, 1],
      cluster_of(2, recv_us=1.0, recv_us_per_byte=0.5),
    )
    assert [
      (p.kind, p.index, p.waited_for) for p in critical_path.segments(s)
    ] == [
      ("op", 2, "begin"),
      ("receive", 0, "device"),
      ("op", 3, "device"),
      ("op", 0, "device"),
    ]
