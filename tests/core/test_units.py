"""Sizes as users write them, and sizes and times as messages show them."""

import numpy as np
import pytest

from tfplace.core.units import format_bytes, format_us, num_bytes
from tfplace.errors import FormatError


@pytest.mark.parametrize(
  ("size", "wanted"),
  [
    ("10GiB", 10 * 2**30),
    ("10GB", 10**10),
    ("1.5 MiB", 1.5 * 2**20),
    ("512", 512),
    ("7B", 7),
    (4096, 4096),
    (0, 0),
  ],
)
def test_a_size_is_bytes(size, wanted):
  assert num_bytes(size) == wanted


@pytest.mark.parametrize(
  "size", ["10gb", "10Gb", "GiB", "-1GB", "", -1, float("nan"), True]
)
def test_what_is_no_size_is_refused(size):
  with pytest.raises(FormatError, match="no memory size"):
    num_bytes(size)


@pytest.mark.parametrize(
  "value, text",
  [
    (0.0, "0 us"),
    (0.25, "0.25 us"),
    (12.0, "12 us"),
    (999.9, "1 ms"),
    (12345.6, "12.3 ms"),
    (2.5e6, "2.5 s"),
    (1.2345e9, "1230 s"),
    (np.inf, "failed"),
  ],
)
def test_times_have_three_digits(value, text):
  assert format_us(value) == text


@pytest.mark.parametrize(
  "value, text",
  [(0.0, "0 B"), (1000.0, "1000 B"), (1536.0, "1.5 KiB"), (2.0**34, "16 GiB")],
)
def test_sizes_have_three_digits(value, text):
  assert format_bytes(value) == text
