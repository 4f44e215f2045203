"""Addresses in the place of files: one sentence, and no network."""

import importlib
import socket

import pytest

from tfplace.errors import TfplaceError
from tfplace.extraction.functions import trace_saved_model
from tfplace.extraction.graph_def import trace_graph_def
from tfplace.learned import policies
from tfplace.variants.keras_step import trace_keras_file

SCHEMES = ("gs", "s3", "http", "https", "hdfs", "ram", "hf", "file")
FLAGS = {
  "extract": ["saved_model", "keras_model", "graph_def", "output"],
  "place": ["graph", "cluster", "policy", "saved_model", "output_saved_model"],
  "measure": ["placement", "keras_model"],
  "explain": ["placement", "graph"],
  "simulate": ["graph", "placement", "trace"],
  "train": ["init_from", "checkpoint_dir", "export_dir", "cluster"],
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def refuse(*_):
    raise AssertionError("the network was asked")

  monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
  ("command", "flag"), [(c, f) for c, names in FLAGS.items() for f in names]
)
def test_a_flag_takes_no_address(command, flag, capsys):
  module = importlib.import_module(f"tfplace.bin.{command}")
  for scheme in SCHEMES:
    assert module.run([f"--{flag}={scheme}://bucket/thing"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--{flag}='{scheme}://bucket/thing' is an address" in line


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
  "load",
  [trace_saved_model, trace_keras_file, trace_graph_def, policies.load_policy],
)
def test_a_function_takes_no_address(load, scheme):
  with pytest.raises(TfplaceError, match=f"{scheme}:/"):
    load(f"{scheme}://bucket/thing")
