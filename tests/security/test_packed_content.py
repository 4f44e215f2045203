"""Packed graphs of hostile content are refused."""

import io
import struct
import tracemalloc
import zipfile

import numpy as np
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


def resealed(arrays, save=np.savez):
  """A block with a right digest of arrays that need not be."""
  body = io.BytesIO()
  save(body, **arrays)
  return sealed(body.getvalue())


def sealed(content):
  digest = packed_graph._DIGEST(content).digest()
  return packed_graph._MAGIC + digest + content


def with_array(content, name, array_bytes):
  """A sealed archive whose member `name` holds the given bytes."""
  body = io.BytesIO()
  with (
    zipfile.ZipFile(io.BytesIO(content[packed_graph._BODY :])) as old,
    zipfile.ZipFile(body, "w") as new,
  ):
    for member in old.namelist():
      is_other = member != f"{name}.npy"
      new.writestr(member, old.read(member) if is_other else array_bytes)
  return sealed(body.getvalue())


def traced_peak(call):
  """Most bytes allocated by a call that raises a FormatError."""
  tracemalloc.start()
  try:
    with pytest.raises(FormatError):
      call()
    return tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


def test_compressed_arrays_are_refused_before_unpacking():
  arrays = arrays_of(pack_graph(odd_graph()))
  bomb = {**arrays, "temp_bytes": np.zeros(1 << 24)}  # 128 MiB of zeros
  content = resealed(bomb, np.savez_compressed)
  assert len(content) < 1 << 20
  assert traced_peak(lambda: unpack_graph(content)) < 8 << 20


def test_shapes_beyond_their_bytes_allocate_nothing():
  content = pack_graph(odd_graph())
  array = io.BytesIO()
  header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 30,)}
  np.lib.format.write_array_header_1_0(array, header)
  huge = with_array(content, "temp_bytes", array.getvalue() + b"\0" * 64)
  assert traced_peak(lambda: unpack_graph(huge)) < 8 << 20


def test_members_that_share_their_bytes_are_refused():
  arrays = arrays_of(pack_graph(odd_graph()))
  body = io.BytesIO()
  np.savez(body, **{**arrays, "temp_bytes": np.zeros(1 << 17)})
  content = body.getvalue()
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    info = archive.getinfo("temp_bytes.npy")
    start = archive.start_dir
  # The directory lists one member of 1 MiB 200 times.
  entry_start = content.index(b"PK\x01\x02", start)
  entries = content[entry_start : content.index(b"PK\x05\x06", start)]
  at = entries.index(b"temp_bytes.npy") - 46
  entry = entries[at : at + 46 + len(info.filename)] + info.extra
  copies = b"".join(
    entry.replace(b"temp_bytes", b"temp_by%03d" % i) for i in range(200)
  )
  end = struct.pack(
    "<4s4HLLH", b"PK\5\6", 0, 0, 200, 200, len(copies), start, 0
  )
  shared = sealed(content[:start] + copies + end)
  assert traced_peak(lambda: unpack_graph(shared)) < 8 << 20


def test_text_of_too_many_values_is_refused(monkeypatch):
  content = pack_graph(odd_graph())
  monkeypatch.setattr(json_file, "MAX_JSON_VALUES", 10)
  with pytest.raises(FormatError, match="values of JSON, at most 10"):
    unpack_graph(content)


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
