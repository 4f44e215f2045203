"""Files that users name: whole or not at all, and never in a device's place."""

import gzip
import json
import os
import socket
import stat
import threading
import time

import pytest

from tfplace.errors import FormatError
from tfplace.formats import files, json_file

FORMAT = "tfplace.graph.v1"
DATA = {"format": FORMAT, "text": "x" * 200_000}  # more than a pipe holds


def is_pipe(path):
  return stat.S_ISFIFO(os.stat(path).st_mode)


def read_in_background(path, result):
  def read():
    time.sleep(0.2)  # after the writer came: it waits
    with open(path, "rb") as file:
      result.append(file.read())

  thread = threading.Thread(target=read)
  thread.start()
  return thread


def test_a_pipe_with_a_reader_is_written_through_and_stays(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  found = []
  reader = read_in_background(tmp_path / "pipe", found)
  files.check_writable(tmp_path / "pipe")  # takes nothing from the reader
  json_file.write_json(tmp_path / "pipe", DATA)
  reader.join()
  assert json.loads(found[0]) == DATA
  assert is_pipe(tmp_path / "pipe")
  assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_is_written_through_and_stays():
  before = os.stat(os.devnull)
  files.check_writable(os.devnull)
  files.write_bytes(os.devnull, b"x")
  assert os.path.samestat(before, os.stat(os.devnull))


def test_a_full_device_is_an_error_that_names_it():
  with pytest.raises(FormatError, match=r"/dev/full: .*No space left"):
    files.write_bytes("/dev/full", b"x")


def test_a_link_stays_and_what_it_points_at_is_replaced(tmp_path):
  (tmp_path / "there").mkdir()
  os.symlink(tmp_path / "there" / "file", tmp_path / "link")
  for content in (b"new", b"newer"):  # where it points at nothing, too
    files.check_writable(tmp_path / "link")
    files.write_bytes(tmp_path / "link", content)
    assert os.path.islink(tmp_path / "link")
    assert (tmp_path / "there" / "file").read_bytes() == content
  assert os.listdir(tmp_path / "there") == ["file"]


def unwritable(tmp_path, case):
  """A path that cannot be written, by root neither, and what says so."""
  (tmp_path / "file").write_text("old")
  if case == "socket":
    with socket.socket(socket.AF_UNIX) as made:
      made.bind(str(tmp_path / "socket"))
  return {
    "folder": (tmp_path, "is a folder"),
    "in no folder": (tmp_path / "none" / "x", "does not exist|No such"),
    "in a file": (tmp_path / "file" / "x", "Not a directory"),
    "name too long": (tmp_path / ("x" * 256), "name too long"),
    "null character": (f"{tmp_path}/a\0b", "null"),
    "socket": (tmp_path / "socket", "is a socket"),
  }[case]


@pytest.mark.parametrize(
  "case",
  [
    *("folder", "in no folder", "in a file", "name too long"),
    *("null character", "socket"),
  ],
)
def test_what_cannot_be_written_is_known_before(tmp_path, case):
  path, why = unwritable(tmp_path, case)
  before = sorted(os.listdir(tmp_path))
  for attempt in (
    lambda: files.check_writable(path),
    lambda: files.write_bytes(path, b"new"),
  ):
    with pytest.raises(FormatError, match=why):
      attempt()
  assert sorted(os.listdir(tmp_path)) == before
  assert (tmp_path / "file").read_text() == "old"


def test_a_new_file_heeds_the_mask_and_an_old_one_keeps_its_mode(tmp_path):
  before = os.umask(0o027)
  try:
    files.write_bytes(tmp_path / "new", b"x")
    (tmp_path / "old").write_bytes(b"")
    os.chmod(tmp_path / "old", 0o606)
    files.write_bytes(tmp_path / "old", b"x")
  finally:
    os.umask(before)
  modes = [os.stat(tmp_path / n).st_mode & 0o777 for n in ("new", "old")]
  assert modes == [0o640, 0o606]


def test_a_folder_takes_the_place_of_another_and_leaves_nothing(tmp_path):
  target = tmp_path / "target"
  for content in ("first", "second"):
    with files.new_folder(str(tmp_path)) as made:
      with open(os.path.join(made, "file"), "w") as file:
        file.write(content)
      files.put_folder(made, str(target))
    assert (target / "file").read_text() == content
    assert os.listdir(tmp_path) == ["target"]


# Reading.


@pytest.mark.parametrize("name, delay_s", [("pipe", 0.0), ("pipe.gz", 0.1)])
def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path, name, delay_s):
  path = tmp_path / name
  os.mkfifo(path)
  content = json.dumps(DATA).encode()
  if name.endswith(".gz"):
    content = gzip.compress(content)

  def write():
    with open(path, "wb") as file:  # waits for its reader
      time.sleep(delay_s)
      file.write(content[:100])
      file.flush()
      time.sleep(delay_s)
      file.write(content[100:])

  writer = threading.Thread(target=write)
  writer.start()
  assert json_file.read_json(path, FORMAT) == DATA
  writer.join()


@pytest.mark.parametrize(
  "name, why",
  [("", "Is a directory"), ("none", "No such file"), ("a\0b", "null")],
)
def test_what_cannot_be_read_is_named(tmp_path, name, why):
  with pytest.raises(FormatError, match=why):
    json_file.read_json(f"{tmp_path}/{name}", FORMAT)


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
  path = tmp_path / "g.json"
  path.write_text("old")

  def fail(_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", fail)
  with pytest.raises(FormatError, match="No space left"):
    json_file.write_json(path, {"new": 1})
  assert path.read_text() == "old"
  assert os.listdir(tmp_path) == ["g.json"]
