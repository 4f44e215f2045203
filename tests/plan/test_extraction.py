"""Extraction through the cache: what a hit gives, and when there is none."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfplace import cost
from tfplace.bin import extract as extract_command
from tfplace.formats.graph import graph_to_json
from tfplace.graph.microbatches import WHOLE
from tfplace.hardware.presets import cluster_preset
from tfplace.plan.config import PlanConfig
from tfplace.plan.graph_cache import GraphCache
from tfplace.plan.source import ModelSource, open_source
from tfplace.plan.steps import Steps

SIZES = {"layers": 1, "units": 8, "vocabulary": 20, "length": 2}
ASKED = {"batch_size": 2, "sizes": SIZES}


def load(folder, asked=(), **options):
  asked = {**ASKED, **dict(asked)}
  cache = GraphCache(folder) if folder else None
  source, cluster = open_source("nmt", **asked), cluster_preset("k80x2")
  steps = Steps(source, cluster, PlanConfig(), cache)
  return steps.graph(WHOLE, **options)


def extract(folder, **asked):
  return load(folder, asked)[0]


def entries(folder):
  return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
  """A cache with one graph, and the graph."""
  folder = str(tmp_path_factory.mktemp("cache") / "graphs")
  return folder, extract(folder)


def test_only_another_question_is_traced(filled, monkeypatch):
  def fail(*_, **__):
    raise AssertionError("traced")

  monkeypatch.setattr(ModelSource, "trace", fail)
  folder, graph = filled
  assert graph_to_json(extract(folder)) == graph_to_json(graph)
  assert len(entries(folder)) == 1
  with pytest.raises(AssertionError, match="traced"):
    extract(folder, batch_size=3)
  with pytest.raises(AssertionError, match="traced"):
    extract(None)


HIT = f"""
import sys
from tfplace.graph.microbatches import WHOLE
from tfplace.hardware.presets import cluster_preset
from tfplace.plan.config import PlanConfig
from tfplace.plan.graph_cache import GraphCache
from tfplace.plan.source import open_source
from tfplace.plan.steps import Steps

source = open_source("nmt", sizes={SIZES}, batch_size=2)
cluster, cache = cluster_preset("k80x4"), GraphCache(sys.argv[1])
graph, _ = Steps(source, cluster, PlanConfig(), cache).graph(WHOLE)
print(graph.num_ops, *set(("tensorflow", "keras")) & set(sys.modules))
"""


def test_another_process_needs_no_tensorflow_for_a_hit(filled):
  folder, graph = filled
  command = [sys.executable, "-c", HIT, folder]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert done.stdout.split() == [str(graph.num_ops)]


def test_a_trace_beside_a_hit_reads_the_costs(filled, monkeypatch):
  monkeypatch.setattr(cost, "op_graph", None)
  graph, traced = load(filled[0], needs_trace=True)
  assert [n.name for n in traced.graph_def.node] == list(graph.names)


@pytest.fixture
def graph_def_file(tmp_path):
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], "x")
    tf.matmul(x, tf.constant(np.ones((4, 4), np.float32)), name="y")
  path = tmp_path / "small.pb"
  path.write_bytes(graph.as_graph_def().SerializeToString())
  return path


def test_commands_keep_graphs_where_they_are_told(graph_def_file, tmp_path):
  folder, out = tmp_path / "cache", tmp_path / "g.json"
  source = [f"--graph_def={graph_def_file}", f"--output={out}"]
  assert extract_command.run([*source, "--graph_cache_dir="]) == 0
  first = out.read_bytes()
  assert entries(folder) == []
  for _ in range(2):
    assert extract_command.run([*source, f"--graph_cache_dir={folder}"]) == 0
    assert out.read_bytes() == first
  assert len(entries(folder)) == 1
  content = graph_def_file.read_bytes()  # a byte more: a miss
  graph_def_file.write_bytes(content + b"\x12\x00")
  assert extract_command.run([*source, f"--graph_cache_dir={folder}"]) == 0
  assert len(entries(folder)) == 2


def test_keras_names_start_anew_inside_and_go_on_outside():
  import keras

  from tfplace.variants.keras_step import fresh_names

  keras.layers.Dense(1)
  last = int(keras.layers.Dense(1).name.removeprefix("dense_"))
  for _ in range(2):
    with fresh_names():
      names = [keras.layers.Dense(1).name for _ in range(2)]
    assert names == ["dense", "dense_1"]
  assert keras.layers.Dense(1).name == f"dense_{last + 1}"
