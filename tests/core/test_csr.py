"""Compressed sparse rows."""

import numpy as np

from tfplace.core.csr import csr, offsets_of


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
