"""Compressed sparse rows."""

import numpy as np

from tfplace.core.csr import all_of_group, csr, group_sums, offsets_of


def test_entries_are_sorted_by_row_and_keep_their_order():
  offsets, order = csr(np.array([2, 0, 2, 0]), 4)
  assert offsets.tolist() == [0, 2, 2, 4, 4]
  assert order.tolist() == [1, 3, 0, 2]


def test_entries_of_a_row_are_sorted_by_the_first_key_first():
  rows, first, second = np.zeros(4, int), [1, 0, 1, 0], [0, 5, 0, 4]
  _, order = csr(rows, 1, np.array(first), np.array(second))
  assert order.tolist() == [3, 1, 0, 2]


def test_offsets_of_nothing():
  assert offsets_of(np.zeros(0, int)).tolist() == [0]
  offsets, order = csr(np.zeros(0, int), 2)
  assert (offsets.tolist(), order.tolist()) == ([0, 0, 0], [])


def test_sums_of_groups_are_those_of_add_at():
  rng = np.random.default_rng(0)
  group_of, values = rng.integers(0, 7, 100), rng.random((100, 3))
  expected = np.zeros((9, 3))
  np.add.at(expected, group_of, values)
  np.testing.assert_array_equal(group_sums(group_of, values, 9), expected)


def test_all_of_a_group_are_true():
  values = np.array([[True, False], [True, True], [False, True]])
  found = all_of_group(np.array([0, 0, 1]), values, 3)
  assert found.tolist() == [[True, False], [False, True], [True, True]]
