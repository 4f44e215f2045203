"""How large a Keras file is once it is unpacked, asked before Keras does so.

Keras stores what it writes: a `.keras` file is a zip archive of uncompressed
members, and its weights are HDF5 datasets of plain bytes. So a file that
unpacks to many times its size was made to fill the memory, and one whose
weights lie in another file was made to read that.
"""

import os
import zipfile
from collections.abc import Iterator

import h5py

from tfplace.errors import ExtractionError
from tfplace.extraction.safety.proto_file import MAX_TEXT_BYTES

MAX_GROWTH = 20  # times its size, that a file may have unpacked
FREE_BYTES = 256 << 20  # may be unpacked from a file of any size


def check(path: str) -> None:
  """Checks a `.keras` or `.h5` file.

  Raises:
    ExtractionError: it is neither, is damaged, unpacks to too much, or has
      its weights elsewhere.
  """
  try:
    if path.endswith(".keras"):
      _check_zip(path)
    else:
      with h5py.File(path, "r") as file:
        _check_h5(file, path, path)
  except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ExtractionError(
      f"Keras model file {path!r} cannot be read: {reason}"
    ) from error


def _check_zip(path: str) -> None:
  with zipfile.ZipFile(path) as archive:
    members = archive.infolist()
    _check_growth(path, sum(member.file_size for member in members), path)
    for member in members:
      if (
        member.filename.endswith(".json") and member.file_size > MAX_TEXT_BYTES
      ):
        raise ExtractionError(
          f"Keras model file {path!r}: {member.filename[:80]!a} has"
          f" {member.file_size} bytes; at most {MAX_TEXT_BYTES} are accepted",
          num_bytes=member.file_size,
        )
    for member in members:
      if member.filename.endswith(".h5"):
        with archive.open(member) as stored, h5py.File(stored, "r") as file:
          _check_h5(file, path, f"{member.filename[:80]} of {path}")


def _check_h5(file: h5py.File, path: str, what: str) -> None:
  external = file.id.links.visit(_external_name, info=True)
  if external is not None:
    raise _elsewhere(path, external.decode(errors="replace"))
  total = 0
  for dataset in _datasets(file):
    if dataset.external or dataset.is_virtual:
      raise _elsewhere(path, str(dataset.name))
    total += int(dataset.size) * dataset.dtype.itemsize
  _check_growth(path, total, what)


def _external_name(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
  """Ends a visit of links at one to another file."""
  return name if info.type == h5py.h5l.TYPE_EXTERNAL else None


def _datasets(file: h5py.File) -> Iterator[h5py.Dataset]:
  found: list[h5py.Dataset] = []

  def add(_: str, item: object) -> None:
    if isinstance(item, h5py.Dataset):
      found.append(item)

  file.visititems(add)
  return iter(found)


def _elsewhere(path: str, name: str) -> ExtractionError:
  return ExtractionError(
    f"Keras model file {path!r}: {name[:80]!a} lies in another file, which is"
    " not read"
  )


def _check_growth(path: str, num_bytes: int, what: str) -> None:
  limit = max(FREE_BYTES, MAX_GROWTH * os.path.getsize(path))
  if num_bytes > limit:
    raise ExtractionError(
      f"Keras model file {path!r} would unpack to {num_bytes} bytes ({what});"
      f" a file of its size may have {limit} at most",
      num_bytes=num_bytes,
    )
