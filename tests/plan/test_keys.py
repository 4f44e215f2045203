"""The content hash: all that decides a graph changes it, and nothing else."""

import dataclasses
import json
import os
import shutil
import sys
from importlib import metadata

import pytest

from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.presets import cluster_preset
from tfplace.plan import graph_keys
from tfplace.plan.graph_keys import content_key


@pytest.fixture(scope="module")
def k80():
  return cluster_preset("k80x2")


def zoo(cluster, name="nmt", **asked):
  asked = {"batch_size": 4, "sizes": {"length": 3}, **asked}
  return content_key("model", name, cluster, **asked)


def test_the_same_question_has_the_same_key(k80):
  assert zoo(k80) == zoo(cluster_preset("k80x2"))
  assert len(zoo(k80)) == 64


CHANGES = {
  "model": {"name": "gnmt"},
  "batch size": {"batch_size": 5},
  "default batch size": {"batch_size": None},
  "inference": {"training": False},
  "size": {"sizes": {"length": 4}},
  "another size": {"sizes": {"length": 3, "layers": 1}},
  "microbatches": {"microbatches": MicrobatchConfig(2)},
  "sizes": {"microbatches": MicrobatchConfig(1, sizes=(5, 3))},
  "in flight": {"microbatches": MicrobatchConfig(1, 1)},
  "devices": {"microbatches": MicrobatchConfig(1, devices=(2,))},
  "batch statistics": {"microbatches": MicrobatchConfig(1, None, True)},
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_what_is_asked_changes_the_key(k80, case):
  assert zoo(k80, **CHANGES[case]) != zoo(k80)


def test_order_of_sizes_does_not_matter(k80):
  a, b = {"length": 3, "layers": 2}, {"layers": 2, "length": 3}
  assert zoo(k80, sizes=a) == zoo(k80, sizes=b)


def with_devices(cluster, **changes):
  devices = [dataclasses.replace(d, **changes) for d in cluster.devices]
  return dataclasses.replace(cluster, devices=tuple(devices))


def test_kinds_of_a_cluster_change_the_key_counts_do_not(k80):
  mixed = zoo(cluster_preset("k80x1+p100x1"))
  assert mixed not in (zoo(k80), zoo(cluster_preset("k80x1+v100x1")))
  assert mixed == zoo(cluster_preset("k80x2+p100x4"))


def test_hardware_changes_the_key_and_what_costs_ignore_does_not(k80):
  assert zoo(cluster_preset("v100x2")) != zoo(k80)
  # Costs are per kind: neither how many, nor overheads, memory and links.
  assert zoo(cluster_preset("k80x4")) == zoo(k80)
  assert zoo(with_devices(k80, op_overhead_us=9.0, memory_bytes=1e9)) == zoo(
    k80
  )
  assert zoo(with_devices(k80, kind="GPU")) != zoo(k80)
  hardware = {**k80.devices[0].extra["hardware"]}
  hardware["frequency"] += 1
  assert zoo(with_devices(k80, extra={"hardware": hardware})) != zoo(k80)


def test_hardware_that_is_no_json_has_no_key(k80):
  odd = with_devices(k80, extra={"hardware": {"frequency": object()}})
  assert zoo(odd) is None


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_another_version_changes_the_key(k80, monkeypatch, package):
  before = zoo(k80)
  version = metadata.version

  def newer(name):
    return version(name) + (".post1" if name == package else "")

  monkeypatch.setattr(metadata, "version", newer)
  graph_keys._version.cache_clear()
  graph_keys._tensorflow_version.cache_clear()
  try:
    assert zoo(k80) != before
  finally:
    monkeypatch.undo()
    graph_keys._version.cache_clear()
    graph_keys._tensorflow_version.cache_clear()
  assert zoo(k80) == before


def test_a_gpu_of_this_host_changes_the_key(k80, monkeypatch, tmp_path):
  before = zoo(k80)
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
  chosen = zoo(k80)
  (tmp_path / "nvidiactl").write_text("")
  monkeypatch.setattr(graph_keys, "_GPU_FILES", (str(tmp_path / "nvidiactl"),))
  there = zoo(k80)
  assert len({before, chosen, there, None}) == 4


def test_gpus_hidden_by_a_call_have_no_key(k80, monkeypatch, tmp_path):
  import tensorflow as tf

  (tmp_path / "nvidiactl").write_text("")
  monkeypatch.setattr(graph_keys, "_GPU_FILES", (str(tmp_path / "nvidiactl"),))
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["gpu"])
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: [])
  assert zoo(k80) is None


def test_an_unknown_tensorflow_has_no_key(k80, monkeypatch):
  monkeypatch.setattr(graph_keys, "_TENSORFLOWS", ("no-such-tensorflow",))
  graph_keys._tensorflow_version.cache_clear()
  try:
    assert zoo(k80) is None
  finally:
    graph_keys._tensorflow_version.cache_clear()


@pytest.mark.parametrize(
  "path", ["models/zoo.py", "extraction/gpu_kernels.json", "cost/calls.py"]
)
def test_a_changed_line_of_code_changes_the_key(
  k80, monkeypatch, tmp_path, path
):
  copy = tmp_path / "tfplace"
  shutil.copytree(
    graph_keys._PACKAGE, copy, ignore=shutil.ignore_patterns("learned")
  )
  monkeypatch.setattr(graph_keys, "_PACKAGE", copy)
  graph_keys._first_code.cache_clear()
  before = zoo(k80)
  (copy / "models" / "notes.txt").write_text("no code")
  (copy / "placers" / "heft.py").write_text("decides no graph")
  assert zoo(k80) == before
  with open(copy / path, "a") as file:
    file.write("\n")
  assert zoo(k80) is None  # this process runs the code as it was
  graph_keys._first_code.cache_clear()
  assert zoo(k80) not in (before, None)
  graph_keys._first_code.cache_clear()


def test_code_that_cannot_be_read_has_no_key(k80, monkeypatch, tmp_path):
  monkeypatch.setattr(graph_keys, "_PACKAGE", tmp_path / "tfplace.zip")
  assert zoo(k80) is None


def test_keras_settings_are_the_same_read_or_imported(monkeypatch, tmp_path):
  import keras

  (tmp_path / "keras.json").write_text(
    json.dumps(
      {
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
      }
    )
  )
  monkeypatch.setenv("KERAS_HOME", str(tmp_path))
  imported = graph_keys._keras_settings()
  monkeypatch.delitem(sys.modules, "keras")
  assert graph_keys._keras_settings() == imported
  (tmp_path / "keras.json").write_text('{"floatx": "float16"}')
  assert graph_keys._keras_settings() != imported


def test_a_dtype_policy_changes_the_key(k80):
  import keras

  before, kept = zoo(k80), keras.config.dtype_policy()
  keras.config.set_dtype_policy("mixed_float16")
  try:
    assert zoo(k80) != before
  finally:
    keras.config.set_dtype_policy(kept)
  assert zoo(k80) == before


def of_file(cluster, path, kind="graph_def"):
  return content_key(kind, str(path), cluster)


def test_a_byte_or_the_name_of_a_file_changes_the_key(k80, tmp_path):
  path = tmp_path / "a.pb"
  path.write_bytes(b"\x00" * 3_000_000)
  before = of_file(k80, path)
  os.utime(path, (0, 0))
  assert of_file(k80, path) == before  # its content, not its date
  path.write_bytes(b"\x00" * 2_999_999 + b"\x01")
  assert of_file(k80, path) != before
  path.write_bytes(b"\x00" * 3_000_000)
  (tmp_path / "deep").mkdir()
  moved = shutil.copy(path, tmp_path / "deep")
  assert of_file(k80, moved) == before  # the folder names nothing
  renamed = shutil.copy(path, tmp_path / "b.pb")
  assert of_file(k80, renamed) != before


def test_any_file_of_a_saved_model_changes_the_key(k80, tmp_path):
  model = tmp_path / "model"
  (model / "variables").mkdir(parents=True)
  (model / "saved_model.pb").write_bytes(b"graph")
  (model / "variables" / "variables.index").write_bytes(b"index")
  seen = {of_file(k80, model, "saved_model")}
  assert of_file(k80, f"{model}/", "saved_model") in seen
  (model / "variables" / "variables.index").write_bytes(b"Index")
  seen.add(of_file(k80, model, "saved_model"))
  (model / "assets").mkdir()
  (model / "assets" / "words.txt").write_bytes(b"")
  seen.add(of_file(k80, model, "saved_model"))
  (model / "assets" / "words.txt").rename(model / "assets" / "word.txt")
  seen.add(of_file(k80, model, "saved_model"))
  assert len(seen) == 4
  assert None not in seen


def test_what_is_no_file_has_no_key(k80, tmp_path):
  assert of_file(k80, tmp_path / "missing.pb") is None
  os.mkfifo(tmp_path / "pipe.pb")
  assert of_file(k80, tmp_path / "pipe.pb") is None
  (tmp_path / "model").mkdir()
  os.mkfifo(tmp_path / "model" / "pipe")
  assert of_file(k80, tmp_path / "model", "saved_model") is None
  (tmp_path / "linked").mkdir()
  assert of_file(k80, tmp_path / "linked", "saved_model") is not None
  os.symlink(tmp_path / "model", tmp_path / "linked" / "variables")
  assert of_file(k80, tmp_path / "linked", "saved_model") is None


def test_a_keras_file_beside_classes_of_the_user_has_no_key(k80, tmp_path):
  import keras

  path = tmp_path / "m.keras"
  path.write_bytes(b"anything")
  with keras.saving.custom_object_scope({}):
    before = of_file(k80, path, "keras_model")
  mine = {"mine>Layer": keras.layers.Layer}
  registered = keras.saving.get_custom_objects()
  registered.update(mine)
  try:
    assert of_file(k80, path, "keras_model") is None
  finally:
    del registered["mine>Layer"]
  assert of_file(k80, path, "keras_model") == before
