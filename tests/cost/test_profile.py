import numpy as np
import pytest

from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.cost import fit_link, with_measured_times
from tfplace.errors import MeasurementError

NAN = float("nan")


def _graph():
  times = [{"GPU": 4.0, "CPU": 40.0}, {"GPU": 1.0, "CPU": 10.0}]
  ops = [OpSpec(name, "MatMul", t) for name, t in zip("ab", times, strict=True)]
  ops.append(OpSpec("const", "Const", {"GPU": 0.0, "CPU": 0.0}))
  ops.append(OpSpec("host", "Print", {"CPU": 7.0}))
  ops.append(OpSpec("c", "Add", {"GPU": 2.0, "CPU": 20.0}))
  return build_graph("g", ops, [])


def test_timed_ops_take_their_time_and_others_are_scaled_by_the_median():
  # a: 12 / 4 = 3, b: 2 / 1 = 2, so the median is 2.5 and c takes 5.
  graph = with_measured_times(_graph(), "GPU", {"a": 12.0, "b": 2.0})
  np.testing.assert_equal(graph.time_us["GPU"], [12.0, 2.0, 0.0, NAN, 5.0])
  np.testing.assert_equal(graph.time_us["CPU"], _graph().time_us["CPU"])


def test_ops_that_were_measured_at_zero_do_not_scale_the_rest():
  graph = with_measured_times(_graph(), "GPU", {"a": 8.0, "b": 0.0})
  np.testing.assert_equal(graph.time_us["GPU"], [8.0, 0.0, 0.0, NAN, 4.0])


def test_a_kind_cannot_learn_to_run_an_op_by_measurement():
  graph = with_measured_times(_graph(), "GPU", {"a": 4.0, "host": 1.0})
  assert np.isnan(graph.time_us["GPU"][3])


def test_names_that_the_graph_lacks_are_ignored():
  graph = with_measured_times(_graph(), "GPU", {"a": 4.0, "fused": 9.0})
  np.testing.assert_equal(graph.time_us["GPU"], _graph().time_us["GPU"])


@pytest.mark.parametrize("time_us", [-1.0, NAN, float("inf")])
def test_times_that_are_none_are_refused_by_name(time_us):
  with pytest.raises(MeasurementError, match=f"'a' was measured at {time_us}"):
    with_measured_times(_graph(), "GPU", {"a": time_us})


def test_a_measurement_of_another_graph_is_refused():
  with pytest.raises(MeasurementError, match=r"none of its 5 ops.*the 1 meas"):
    with_measured_times(_graph(), "GPU", {"z": 1.0})
  with pytest.raises(MeasurementError, match="measured on TPU"):
    with_measured_times(_graph(), "TPU", {"a": 1.0})


SIZES = np.array([0.0, 1e3, 1e4, 1e5, 1e6, 1e7])


def test_an_exact_line_is_found():
  fit = fit_link(SIZES, SIZES / 1250.0 + 30.0)
  assert fit.bandwidth_bytes_per_us == pytest.approx(1250.0, rel=1e-6)
  assert fit.latency_us == pytest.approx(30.0, rel=1e-6)


def test_transfers_that_were_held_up_do_not_bend_the_line():
  sizes = np.repeat(SIZES, 5)
  times = sizes / 1250.0 + 30.0
  times[::5] *= 20.0  # one of five, twenty times too slow
  fit = fit_link(sizes, times)
  assert fit.bandwidth_bytes_per_us == pytest.approx(1250.0, rel=1e-3)
  assert fit.latency_us == pytest.approx(30.0, rel=1e-3)


def test_noise_shifts_the_fit_by_no_more_than_itself():
  rng = np.random.default_rng(0)
  sizes = np.repeat(SIZES, 20)
  times = (sizes / 800.0 + 100.0) * rng.uniform(0.9, 1.1, len(sizes))
  fit = fit_link(sizes, times)
  assert fit.bandwidth_bytes_per_us == pytest.approx(800.0, rel=0.1)
  assert fit.latency_us == pytest.approx(100.0, rel=0.1)


def test_through_the_origin_small_transfers_do_not_tell_the_rate():
  # A line through both would be negative at 0 bytes: 4 bytes took 0.5 us, of
  # which no more can be said than that the latency is about nothing.
  fit = fit_link([4.0, 16384.0], [0.5, 16384.0])
  assert fit == (pytest.approx(1.0), 0.0)


def test_latency_is_never_negative():
  fit = fit_link([1e6, 2e6, 4e6], [800.0, 2000.0, 4000.0])
  assert fit.latency_us == 0.0
  # us per byte: 8e-4, 1e-3, 1e-3; their median is 1e-3.
  assert fit.bandwidth_bytes_per_us == pytest.approx(1e3)


@pytest.mark.parametrize(
  ("sizes", "times", "message"),
  [
    ([1e3], [1.0], "two sizes"),
    ([1e3, 1e3], [1.0, 2.0], "two sizes"),
    ([1e3, 1e4], [0.0, 2.0], "times above 0"),
    ([1e3, 1e4], [1.0], r"\(2,\) sizes of transfers for \(1,\) times"),
    ([1e3, NAN], [1.0, 2.0], "not finite"),
    ([1e3, 1e4, 1e5], [30.0, 20.0, 10.0], "took no longer"),
  ],
)
def test_what_is_no_line_is_refused(sizes, times, message):
  with pytest.raises(MeasurementError, match=message):
    fit_link(sizes, times)
