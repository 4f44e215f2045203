"""The rows of the benchmarks on one kind of GPU."""

import pytest
from absl import app, flags
from absl.testing import flagsaver

from benchmarks.lib import gpu_flags


@pytest.fixture(autouse=True)
def parsed_flags():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


def test_rows_are_the_published_ones():
  labels = [row.label for row in gpu_flags.rows()]
  assert len(labels) == 14 and "8-layer GNMT" in labels


def test_rows_are_the_test_members_of_families():
  with flagsaver.flagsaver(test_members=["cifar10", "nmt"]):
    rows = gpu_flags.rows()
  assert [row.sizes["index"] for row in rows] == [*range(24, 32)] * 2
  assert {row.model for row in rows} == {"cifar10", "nmt_family"}
  assert gpu_flags.cluster_of(rows[0]) == "p100x4"


def test_a_pattern_chooses_among_members():
  with flagsaver.flagsaver(test_members=["ptb"], rows="2[45]$"):
    assert [row.label for row in gpu_flags.rows()] == ["ptb 24", "ptb 25"]


def test_an_unknown_family_is_refused():
  with (
    flagsaver.flagsaver(test_members=["cifar100"]),
    pytest.raises(app.UsageError, match="unknown family 'cifar100'"),
  ):
    gpu_flags.rows()


def test_a_pattern_that_names_no_row_is_refused():
  with (
    flagsaver.flagsaver(rows="BERT"),
    pytest.raises(app.UsageError, match="'BERT' names no row"),
  ):
    gpu_flags.rows()
