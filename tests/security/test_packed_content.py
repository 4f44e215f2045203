"""Packed graphs of hostile content are refused."""

import json
import tracemalloc

import pytest

from tests.testing.packed_graphs import odd_graph
from tfplace.errors import FormatError
from tfplace.formats import json_file, packed_graph
from tfplace.formats.packed_graph import pack_graph, unpack_graph


def test_every_truncation_and_every_flipped_byte_is_refused():
  content = pack_graph(odd_graph())
  for end in range(0, len(content), 7):
    with pytest.raises(FormatError):
      unpack_graph(content[:end])
  for at in range(0, len(content), 11):
    flipped = bytearray(content)
    flipped[at] ^= 1
    with pytest.raises(FormatError):
      unpack_graph(bytes(flipped))


def resealed(arrays=lambda content: content, **text):
  """A packed graph with a right digest, other text and other arrays."""
  content = pack_graph(odd_graph())[packed_graph._BODY :]
  start = 8 + int.from_bytes(content[:8], "little")
  header = json.dumps({**json.loads(content[8:start]), **text}).encode()
  body = len(header).to_bytes(8, "little") + header + arrays(content[start:])
  digest = packed_graph._DIGEST(body).digest()
  return packed_graph._MAGIC + digest + body


def test_text_of_too_many_values_is_refused(monkeypatch):
  monkeypatch.setattr(json_file, "MAX_JSON_VALUES", 10)
  with pytest.raises(FormatError, match="values of JSON, at most 10"):
    unpack_graph(resealed())


@pytest.mark.parametrize(
  "text",
  [
    {"num_outputs": 1 << 62},
    {"num_outputs": 10**400},
    {"num_outputs": -1},
    {"num_edges": "3"},
    {"num_edges": 2},
    {"names": ["a", "a", "c"]},
    {"names": ["a", 3, "c"]},
    {"types": ["MatMul"]},
    {"kinds": ["GPU"]},
    {"colocation_names": []},
    {"extra": [1]},
  ],
  ids=str,
)
def test_wrong_text_is_refused_without_allocating(text):
  unpack_graph(resealed())  # as it is, it is fine
  content = resealed(**text)
  tracemalloc.start()
  try:
    with pytest.raises(FormatError):
      unpack_graph(content)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize("at", range(0, 200, 4))
def test_whatever_four_bytes_of_arrays_say_a_graph_is_valid(at):
  # Types, counts, groups, edges: 2**31 - 1 is none of them, nor is -1 where
  # that has no meaning; as bits of a number it is negative or NaN.
  for word in (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff"):
    changed = resealed(lambda a, word=word: a[:at] + word + a[at + 4 :])
    try:
      graph = unpack_graph(changed)
    except FormatError:
      continue
    assert pack_graph(graph)  # A graph that passes has a meaning.


@pytest.mark.parametrize("cut", [-4, 4])
def test_arrays_of_another_length_are_refused(cut):
  with pytest.raises(FormatError):
    unpack_graph(resealed(lambda a: a[:cut] if cut < 0 else a + b"\0" * cut))
