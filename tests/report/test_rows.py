"""Bars and steps that are few enough for a browser."""

import numpy as np
import pytest

from tfplace.report.rows import make_bars, thin_steps


def bars_of(spans, limit=100):
  start, end = np.array(spans, float).reshape(-1, 2).T
  return make_bars(start, end, limit, 10.0)


def test_few_intervals_have_a_bar_each_in_order_of_time():
  bars = bars_of([(5, 6), (0, 2), (3, 3)])
  assert bars.start_us.tolist() == [0, 5]
  assert bars.end_us.tolist() == [2, 6]
  assert (bars.item.tolist(), bars.count.tolist()) == ([1, 0], [1, 1])
  assert bars.busy.tolist() == [1, 1]


def test_short_ones_share_a_bar_and_a_long_one_keeps_its_own():
  # With at most 5 bars, the unit is 6: one long, three before and two after.
  spans = [(0, 0.5), (1, 1.5), (1.5, 2), (2, 9), (9, 9.2), (9.75, 10)]
  bars = bars_of(spans, limit=5)
  assert bars.start_us.tolist() == [0, 2, 9]
  assert bars.end_us.tolist() == [2, 9, 10]
  assert bars.count.tolist() == [3, 1, 2]
  assert bars.busy.tolist() == pytest.approx([0.75, 1.0, 0.45])
  assert bars.item.tolist()[1:] == [3, 5]


@pytest.mark.parametrize("spans", [[], [(1, 1)]])
def test_no_intervals_have_no_bars(spans):
  assert not len(bars_of(spans).start_us)


@pytest.mark.parametrize("seed", range(4))
def test_bars_are_bounded_apart_and_of_the_same_area(seed):
  rng = np.random.default_rng(seed)
  ends = np.cumsum(rng.exponential(1.0, 4000) ** 3)
  start, end = ends[:-1:2], ends[1::2]  # every other one is a gap
  bars = make_bars(start, end, 90, float(ends[-1]))
  assert len(bars.start_us) <= 90
  assert np.all(bars.start_us[1:] >= bars.end_us[:-1])
  area = float((bars.busy * (bars.end_us - bars.start_us)).sum())
  assert area == pytest.approx(float((end - start).sum()))
  assert bars.count.sum() == len(start)


def test_thin_steps_keep_each_cells_peak_and_last_value():
  # Cells of 2 * 10 / (6 - 2) = 5: 0-5 and 5-10.
  time = np.array([0.0, 1, 2, 3, 4, 6, 7, 8])
  value = np.array([1.0, 9, 2, 3, 4, 5, 1, 0])
  at, kept = thin_steps(time, value, 6, 10.0)
  assert at.tolist() == [0, 4, 6, 8]
  assert kept.tolist() == [9, 4, 5, 0]
  assert thin_steps(time, value, 8, 10.0)[0] is time


def test_thinned_steps_are_bounded_and_reach_the_same_peak():
  rng = np.random.default_rng(0)
  time, value = np.sort(rng.random(9000)), rng.random(9000)
  at, kept = thin_steps(time, value, 50, 1.0)
  assert len(at) <= 50
  assert kept.max() == value.max()
  assert np.all(np.diff(at) >= 0)
