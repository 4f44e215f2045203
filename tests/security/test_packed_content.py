"""Packed graphs of hostile content are refused."""

import io

import numpy as np
import pytest

from tests.testing.packed_graphs import odd_graph
from tfplace.errors import FormatError
from tfplace.formats import packed_graph
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


def resealed(arrays):
  """A block with a right digest of arrays that need not be."""
  body = io.BytesIO()
  np.savez(body, **arrays)
  content = body.getvalue()
  digest = packed_graph._DIGEST(content).digest()
  return packed_graph._MAGIC + digest + content


def arrays_of(content):
  with np.load(io.BytesIO(content[packed_graph._BODY :])) as arrays:
    return dict(arrays)


# What compiled code would follow out of bounds, or divide by.
WRONG = {
  "edge from nowhere": ("edge_src", np.array([0, 0, 3], np.int32)),
  "edge to nowhere": ("edge_dst", np.array([1, 2, -1], np.int32)),
  "output that is not there": ("edge_output", np.array([2, -1, 0], np.int32)),
  "output below control": ("edge_output", np.array([1, -2, 0], np.int32)),
  "edges of two lengths": ("edge_output", np.array([1, -1], np.int32)),
  "group that is not there": ("colocation", np.array([0, 0, 1], np.int32)),
  "negative count": ("output_count", np.array([2, -1, 2], np.int32)),
  "counts that do not add up": ("output_count", np.array([2, 0, 0], np.int32)),
  "type that is not there": ("type", np.array([0, 1, 2], np.int32)),
  "negative time": ("time_us", np.full((2, 3), -1.0)),
  "infinite size": ("output_bytes", np.array([8, np.inf, 0])),
  "other numbers": ("temp_bytes", np.zeros(3, np.float32)),
  "kinds without times": ("time_us", np.zeros((1, 3))),
  "text that is none": ("text", np.frombuffer(b"[1, 2", np.uint8)),
  "cycle": ("edge_src", np.array([0, 2, 2], np.int32)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_whole_block_with_wrong_content_is_refused(case):
  name, array = WRONG[case]
  arrays = arrays_of(pack_graph(odd_graph()))
  unpack_graph(resealed(arrays))  # as it is, it is fine
  with pytest.raises(FormatError):
    unpack_graph(resealed({**arrays, name: array}))


def test_a_pickle_in_a_block_is_not_run(tmp_path):
  class Bomb:
    def __reduce__(self):
      return open, (str(tmp_path / "bang"), "w")

  arrays = arrays_of(pack_graph(odd_graph()))
  bomb = np.array([Bomb()], object)
  with pytest.raises(FormatError):
    unpack_graph(resealed({**arrays, "temp_bytes": bomb}))
  assert not (tmp_path / "bang").exists()
