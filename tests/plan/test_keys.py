"""The content hash: all that decides a graph changes it, and nothing else."""

import dataclasses
import os
import shutil
from importlib import metadata

import pytest
import tensorflow as tf

from tfplace.cost import registry
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.hardware.presets import cluster_preset
from tfplace.measure.local import host
from tfplace.plan import graph_keys
from tfplace.plan.graph_keys import content_key
from tfplace.plan.source import ModelSource

K80 = cluster_preset("k80x2")


@pytest.fixture(autouse=True)
def fresh():
  graph_keys._software.cache_clear()
  yield
  graph_keys._software.cache_clear()


SOURCE = ModelSource("model", "nmt", batch_size=4, sizes={"length": 3})


def zoo(cluster=K80, variant=WHOLE, costs=None, compile_units=False, **source):
  return content_key(
    dataclasses.replace(SOURCE, **source),
    cluster,
    variant,
    costs=costs or registry.DEFAULT,
    compile_units=compile_units,
  )


def of_file(path, kind="graph_def"):
  return content_key(ModelSource(kind, str(path)), K80)


def with_devices(**changes):
  devices = [dataclasses.replace(d, **changes) for d in K80.devices]
  return dataclasses.replace(K80, devices=tuple(devices))


HARDWARE = dict(K80.devices[0].extra["hardware"])
CHANGES = [
  {"name": "gnmt"},
  {"batch_size": 5},
  {"batch_size": None},
  {"training": False},
  {"sizes": {"length": 4}},
  {"costs": "grappler"},
  {"compile_units": True},
  {"variant": VariantConfig(2)},
  {"variant": VariantConfig(2, sizes=(5, 3))},
  {"variant": VariantConfig(1, None, True)},
  {"cluster": cluster_preset("v100x2")},
  {"cluster": cluster_preset("k80x1+p100x1")},
  {"cluster": with_devices(kind="GPU")},
  {
    "cluster": with_devices(
      extra={"hardware": {**HARDWARE, "frequency": HARDWARE["frequency"] + 1}}
    )
  },
]


def test_every_change_of_what_is_asked_changes_the_key():
  keys = [zoo(), *(zoo(**change) for change in CHANGES)]
  assert len(set(keys)) == len(keys)
  assert {len(key) for key in keys} == {64}


def test_the_precision_of_products_changes_the_key():
  before = zoo()
  tf.config.experimental.enable_tensor_float_32_execution(False)
  try:
    assert zoo() != before
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(True)
  assert zoo() == before


def test_what_costs_ignore_does_not_change_the_key():
  # Costs are per kind: neither how many, nor overheads, memory and links.
  assert zoo(cluster_preset("k80x4")) == zoo()
  assert zoo(with_devices(op_overhead_us=9.0, memory_bytes=1e9)) == zoo()
  mixed = cluster_preset("k80x1+p100x1"), cluster_preset("k80x2+p100x4")
  assert zoo(mixed[0]) == zoo(mixed[1])
  a, b = {"length": 3, "layers": 2}, {"layers": 2, "length": 3}
  assert zoo(sizes=a) == zoo(sizes=b)


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_another_version_changes_the_key(monkeypatch, package):
  before = zoo()
  version = metadata.version

  def newer(name):
    return version(name) + (".post1" if name == package else "")

  monkeypatch.setattr(metadata, "version", newer)
  graph_keys._software.cache_clear()
  assert zoo() != before


def test_the_host_changes_the_key(monkeypatch, tmp_path):
  seen = {zoo()}
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
  seen.add(zoo())
  (tmp_path / "nvidiactl").write_text("")
  monkeypatch.setattr(host, "_DRIVERS", (str(tmp_path / "nvidiactl"),))
  seen.add(zoo())
  monkeypatch.setenv("KERAS_HOME", str(tmp_path))
  (tmp_path / "keras.json").write_text('{"floatx": "float16"}')
  seen.add(zoo())
  assert len(seen - {None}) == 4


@pytest.mark.parametrize(
  "path", ["models/zoo.py", "extraction/gpu_kernels.json", "cost/calls.py"]
)
def test_a_changed_line_of_code_changes_the_key(monkeypatch, tmp_path, path):
  copy = tmp_path / "tfplace"
  for name in (
    "models",
    "graph",
    "hardware",
    "formats",
    "extraction",
    "cost",
    "plan",
  ):
    shutil.copytree(graph_keys._PACKAGE / name, copy / name)
  (copy / "__init__.py").write_text("")
  monkeypatch.setattr(graph_keys, "_PACKAGE", copy)
  before = zoo()
  (copy / "models" / "notes.txt").write_text("no code")
  (copy / "plan" / "search.py").write_text("decides no graph")
  graph_keys._software.cache_clear()
  assert zoo() == before is not None
  with open(copy / path, "a") as file:
    file.write("\n")
  assert zoo() == before  # This process runs the code as it was.
  graph_keys._software.cache_clear()
  assert zoo() not in (before, None)


def test_a_byte_or_the_name_of_a_file_changes_the_key(tmp_path):
  path = tmp_path / "a.pb"
  path.write_bytes(b"\x00" * 3_000_000)
  before = of_file(path)
  os.utime(path, (0, 0))
  assert of_file(path) == before  # its content, not its date
  path.write_bytes(b"\x00" * 2_999_999 + b"\x01")
  assert of_file(path) != before
  path.write_bytes(b"\x00" * 3_000_000)
  (tmp_path / "deep").mkdir()
  moved = shutil.copy(path, tmp_path / "deep")
  assert of_file(moved) == before  # the folder names nothing
  assert of_file(shutil.copy(path, tmp_path / "b.pb")) != before


def test_any_file_of_a_saved_model_changes_the_key(tmp_path):
  model = tmp_path / "model"
  (model / "variables").mkdir(parents=True)
  (model / "saved_model.pb").write_bytes(b"graph")
  index = model / "variables" / "variables.index"
  index.write_bytes(b"index")
  seen = {of_file(model, "saved_model")}
  assert of_file(f"{model}/", "saved_model") in seen
  index.write_bytes(b"Index")
  seen.add(of_file(model, "saved_model"))
  (model / "assets").mkdir()
  (model / "assets" / "words.txt").write_bytes(b"")
  seen.add(of_file(model, "saved_model"))
  (model / "assets" / "words.txt").rename(model / "assets" / "word.txt")
  seen.add(of_file(model, "saved_model"))
  assert len(seen) == 4
  assert None not in seen


def test_pipes_links_and_missing_files_have_no_key(tmp_path):
  assert of_file(tmp_path / "missing.pb") is None
  os.mkfifo(tmp_path / "pipe.pb")
  assert of_file(tmp_path / "pipe.pb") is None
  (tmp_path / "model").mkdir()
  os.mkfifo(tmp_path / "model" / "pipe")
  assert of_file(tmp_path / "model", "saved_model") is None
  (tmp_path / "linked").mkdir()
  assert of_file(tmp_path / "linked", "saved_model") is not None
  os.symlink(tmp_path / "model", tmp_path / "linked" / "variables")
  assert of_file(tmp_path / "linked", "saved_model") is None
