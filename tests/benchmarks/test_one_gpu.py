"""The rows of the benchmarks on one kind of GPU."""

import pytest

from benchmarks.lib import one_gpu
from tfplace.bin import cli


@pytest.fixture
def give(monkeypatch):
  """Sets flags."""
  one_gpu.VALUES.mark_as_parsed()

  def call(**given):
    for name, value in given.items():
      monkeypatch.setattr(one_gpu.VALUES[name], "value", value)

  return call


def test_rows_are_the_published_ones(give):
  give()
  labels = [row.label for row in one_gpu.rows()]
  assert len(labels) == 14 and "8-layer GNMT" in labels


def test_rows_are_the_test_members_of_families(give):
  give(test_members=["cifar10", "nmt"])
  rows = one_gpu.rows()
  assert [row.sizes["index"] for row in rows] == [*range(24, 32)] * 2
  assert {row.model for row in rows} == {"cifar10", "nmt_family"}
  assert one_gpu.cluster_of(rows[0]) == "p100x4"


def test_a_pattern_chooses_among_members(give):
  give(test_members=["ptb"], rows="2[45]$")
  assert [row.label for row in one_gpu.rows()] == ["ptb 24", "ptb 25"]


def test_an_unknown_family_is_refused(give):
  give(test_members=["cifar100"])
  with pytest.raises(cli.UsageError, match="unknown family 'cifar100'"):
    one_gpu.rows()


def test_a_pattern_that_names_no_row_is_refused(give):
  give(rows="BERT")
  with pytest.raises(cli.UsageError, match="'BERT' names no row"):
    one_gpu.rows()
