"""HTML that notebooks show: tables and nothing that runs."""

import math

import pytest

from tests.testing.html_pages import page_of
from tfplace.report import summary

# Names of clusters and graphs are printable; other texts may be anything.
NAME = "<img src=x onerror='alert(1)'>&\""
EVIL = f"{NAME}\x00\ud800"


def pages_of_evil_names():
  device = summary.DeviceRow(EVIL, 1.0, 1.0, 8.0, math.inf, EVIL)
  yield summary.plan_html(EVIL, [device], {}, [EVIL])
  yield summary.plan_html(EVIL, [], {EVIL: EVIL}, [EVIL])


@pytest.mark.parametrize("text", pages_of_evil_names())
def test_names_are_escaped_everywhere(text):
  page = page_of(text)
  assert NAME in "".join(page.words)
  assert "\x00" not in text
  assert "img" not in page.tags
  text.encode("utf-8")
