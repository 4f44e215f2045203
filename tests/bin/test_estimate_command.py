"""tfplace-estimate: tables, files, and one line for bad input."""

import json

import keras
import pytest

from tests.testing.policy_problems import gpus, random_graph
from tfplace import formats
from tfplace.bin import estimate


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
  model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(2, name="head")], name="net"
  )
  model.compile("sgd", "mse", jit_compile=False)
  path = tmp_path_factory.mktemp("model") / "net.keras"
  model.save(path)
  return f"--keras_model={path}"


def test_tables_json_file_and_report(model_file, tmp_path, capsys):
  output, report = tmp_path / "e.json", tmp_path / "r.html"
  flags = ["--batch_size=8", "--json", f"--output={output}"]
  assert estimate.run([model_file, *flags, f"--report={report}"]) == 0
  lines = capsys.readouterr().out.splitlines()
  text = "\n".join(lines)
  # A kernel of 4 * 2 and a bias of 2, in float32.
  for words in ("net: training step of 8", "10 (40 B)", "h100", "v100-32gb"):
    assert words in text
  data = json.loads(lines[-1])
  assert data == json.loads(output.read_text())
  assert data["steps"][0]["weights"]["trainable_bytes"] == 40
  assert "timeline and memory" in report.read_text()


def test_largest_batch_of_a_cluster(model_file, tmp_path, capsys):
  from tfplace.graph.cluster import with_max_memory
  from tfplace.hardware.presets import cluster_preset

  path = tmp_path / "c.json"
  small = with_max_memory(cluster_preset("v100x1"), {"GPU:0": 20_000})
  formats.save_cluster(small, path)
  flags = [f"--cluster={path}", "--largest_batch", "--json"]
  assert estimate.run([model_file, *flags]) == 0
  out = capsys.readouterr().out
  data = json.loads(out.splitlines()[-1])
  assert data["largest_batch"]["peak_memory_bytes"] <= 20_000
  assert "The largest batch on" in out


def test_a_graph_file_needs_no_model(tmp_path, capsys):
  graph, cluster = tmp_path / "g.json.gz", tmp_path / "c.json"
  formats.save_graph(random_graph(10, seed=3, name="tiny"), graph)
  formats.save_cluster(gpus(3), cluster)
  report = tmp_path / "r.html"
  flags = [f"--graph={graph}", f"--cluster={cluster}", f"--report={report}"]
  assert estimate.run([*flags, "--json"]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == "tiny: inference step"  # The file has no batch size.
  assert json.loads(lines[-1])["steps"][0]["cards"][0]["fits"]
  assert "timeline and memory" in report.read_text()
