"""Sizes as users write them, and sizes and times as messages show them."""

import pytest

from tfplace.errors import FormatError
from tfplace.graph.quantities import (
  exact_bytes,
  format_bytes,
  format_share,
  format_us,
  num_bytes,
)


@pytest.mark.parametrize(
  "size, wanted",
  [
    ("10GiB", 10 * 2**30),
    ("10GB", 10**10),
    ("1.5 MiB", 1.5 * 2**20),
    ("512", 512),
    (4096, 4096),
    (0, 0),
  ],
)
def test_a_size_is_bytes(size, wanted):
  assert num_bytes(size) == wanted


@pytest.mark.parametrize(
  "size", ["10gb", "GiB", "-1GB", "", -1, float("nan"), True]
)
def test_what_is_no_size_is_refused(size):
  with pytest.raises(FormatError, match="no memory size"):
    num_bytes(size)


def test_values_have_three_digits():
  times = {0.0: "0 us", 0.25: "0.25 us", 999.9: "1 ms", 12345.6: "12.3 ms",
           1.2345e9: "1230 s", float("inf"): "failed"}  # fmt: skip
  assert [format_us(value) for value in times] == [*times.values()]
  sizes = {0.0: "0 B", 1000.0: "1000 B", 1536.0: "1.5 KiB", 2.0**34: "16 GiB"}
  assert [format_bytes(value) for value in sizes] == [*sizes.values()]
  assert exact_bytes(3 * 2**30) == "3 GiB (3221225472 bytes)"
  shares = {(1, 3): "33%", (1, 30): "3.3%", (1, 0): "-", (1, 1e4): "under 0.1%"}
  assert [format_share(*value) for value in shares] == [*shares.values()]
