"""The directory of graphs: whole entries or none, bounded, never an error."""

import logging
import os
import stat
import subprocess
import sys
import time

import pytest

from tfplace.formats.packed_graph import pack_graph
from tfplace.graph import OpSpec, build_graph
from tfplace.plan import graph_cache
from tfplace.plan.graph_cache import GraphCache, default_directory

KEY, OTHER = "0" * 64, "f" * 64


def chain(num_ops=3):
  ops = [OpSpec(f"op{i}", "X", {"GPU": 1.0}, [4]) for i in range(num_ops)]
  edges = [(i, 0, i + 1) for i in range(num_ops - 1)]
  return build_graph("chain", ops, edges)


SIZE = len(pack_graph(chain()))


@pytest.fixture
def cache(tmp_path):
  return GraphCache(tmp_path / "graphs")


def entry(cache, key=KEY):
  return os.path.join(cache.directory, f"{key}.opgraph")


def test_graphs_are_found_under_their_keys_only(cache):
  assert cache.load(KEY) is None
  cache.store(KEY, chain(3))
  cache.store(OTHER, chain(5))
  assert cache.load(KEY).num_ops == 3
  assert cache.load(OTHER).num_ops == 5
  assert cache.load("1" * 64) is None
  assert stat.S_IMODE(os.stat(cache.directory).st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", None, "cut", "flip"])
def test_damaged_entries_are_written_anew(cache, content):
  cache.store(KEY, chain())
  whole = pack_graph(chain())
  if content == "cut":
    content = whole[: len(whole) // 2]
  elif content == "flip":
    content = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
  elif content is None:
    content = os.urandom(5000)
  with open(entry(cache), "wb") as file:
    file.write(content)
  assert cache.load(KEY) is None
  cache.store(KEY, chain())
  assert cache.load(KEY).num_ops == 3


def test_the_longest_unused_entries_go_first(tmp_path, monkeypatch):
  monkeypatch.setattr(graph_cache, "_MAX_BYTES", 3 * SIZE)
  cache = GraphCache(tmp_path)
  kept = ["notes.txt", f".{OTHER}.opgraph.new", f"{OTHER}.json"]
  for name in kept:
    (tmp_path / name).write_bytes(b"x" * 10_000)
  keys = [f"{i}" * 64 for i in range(4)]
  now = time.time()
  for i, key in enumerate(keys[:3]):
    cache.store(key, chain())
    os.utime(entry(cache, key), (now - 100 + i, now - 100 + i))
  assert cache.load(keys[0])  # used: now keys[1] is the longest unused
  cache.store(keys[3], chain())
  left = [key for key in keys if os.path.exists(entry(cache, key))]
  assert left == [keys[0], keys[2], keys[3]]
  assert set(kept) < set(os.listdir(tmp_path))


@pytest.mark.parametrize("folder", ["file/graphs", "/proc/tfplace/graphs"])
def test_unwritable_directories_cost_one_warning(folder, tmp_path, caplog):
  (tmp_path / "file").write_text("")
  graph_cache._warn_once.cache_clear()
  cache = GraphCache(tmp_path / folder)
  with caplog.at_level(logging.WARNING, "tfplace"):
    for _ in range(3):
      assert cache.load(KEY) is None
      cache.store(KEY, chain())
  assert len(caplog.records) == 1
  assert "not cached" in caplog.text


WRITER = """
import sys
from tfplace.graph import OpSpec, build_graph
from tfplace.plan.graph_cache import GraphCache
size, folder = int(sys.argv[1]), sys.argv[2]
ops = [OpSpec(f"op{i}", "X", {"GPU": 1.0}, [4]) for i in range(size)]
graph = build_graph("g", ops, [])
cache = GraphCache(folder)
for _ in range(30):
  cache.store("0" * 64, graph)
  found = cache.load("0" * 64)
  assert found is not None and found.num_ops in (1000, 2000), found
"""


def test_writers_at_the_same_time_leave_whole_entries(tmp_path):
  runs = [
    subprocess.Popen(
      [sys.executable, "-c", WRITER, str(size), str(tmp_path)],
      stderr=subprocess.PIPE,
      text=True,
    )
    for size in (1000, 2000)
  ]
  for run in runs:
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
  assert os.listdir(tmp_path) == [f"{KEY}.opgraph"]


def test_the_default_directory_follows_xdg(monkeypatch):
  monkeypatch.setenv("HOME", "/home/someone")
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  assert default_directory() == "/home/someone/.cache/tfplace"
  monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
  assert default_directory() == "/home/someone/.cache/tfplace"
  monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
  assert default_directory() == "/var/caches/tfplace"
