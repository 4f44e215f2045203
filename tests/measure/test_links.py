"""Fitting a link to transfers."""

import pytest

from tfplace.measure import links


def test_exact_transfers_give_back_their_link():
  # 200 us and 1000 bytes/us.
  sizes = [4, 1_000, 100_000, 1_000_000]
  times = [200 + size / 1000 for size in sizes]
  latency, bandwidth = links.fit_link(sizes, times)
  assert latency == pytest.approx(200, rel=1e-6)
  assert bandwidth == pytest.approx(1000, rel=1e-6)


def test_latency_is_never_negative():
  # Through (1000, 1) and (3000, 5) the line crosses zero at 500 bytes.
  latency, bandwidth = links.fit_link([1000, 3000], [1.0, 5.0])
  assert latency == 0
  assert 3000 / 5 <= bandwidth <= 1000 / 1
