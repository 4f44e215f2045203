"""Limits on JSON files: bombs, broken gzip and bytes that are not text."""

import gzip
import json

import pytest

from tests.testing.json_files import GRAPH
from tfplace import formats
from tfplace.errors import FormatError
from tfplace.formats import json_file


def test_ten_million_ops_are_refused_before_they_are_built(tmp_path):
  path = tmp_path / "big.json.gz"
  head = b'{"format":"tfplace.graph.v1","name":"x","edges":[],"ops":['
  path.write_bytes(gzip.compress(head + b"0," * 10_000_000 + b"0]}"))
  with pytest.raises(FormatError, match="ops: 10000001 elements, at most"):
    formats.load_graph(path)


def test_gzip_bomb_is_refused_at_the_size_limit(tmp_path, monkeypatch):
  monkeypatch.setattr(json_file, "MAX_JSON_BYTES", 1000)
  path = tmp_path / "bomb.json.gz"
  path.write_bytes(gzip.compress(b" " * 100_000))
  with pytest.raises(FormatError, match="larger than 1000 bytes"):
    formats.load_graph(path)


def test_json_of_too_many_values_is_refused_before_it_is_parsed(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(json_file, "MAX_JSON_VALUES", 100)
  path = tmp_path / "many.json"
  path.write_text("[" + "[]," * 100 + "[]]")
  # 100 commas and 102 opening brackets.
  with pytest.raises(FormatError, match="202 values of JSON, at most 100"):
    formats.load_graph(path)


@pytest.mark.parametrize("keep", [5, 60])
def test_truncated_gzip_is_refused_by_name(tmp_path, keep):
  path = tmp_path / "cut.json.gz"
  path.write_bytes(gzip.compress(json.dumps(GRAPH).encode())[:keep])
  with pytest.raises(FormatError, match=r"cut\.json\.gz"):
    formats.load_graph(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00\x01"])
def test_bytes_that_are_no_text_are_refused(tmp_path, content):
  path = tmp_path / "raw.json"
  path.write_bytes(content)
  with pytest.raises(FormatError, match=r"raw\.json"):
    formats.load_graph(path)
