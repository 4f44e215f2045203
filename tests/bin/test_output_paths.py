"""No command writes over a file that it reads, or over another output."""

import importlib
import os
import shutil

import pytest

from tests.testing.policy_problems import gpus, random_graph
from tfplace import formats


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  formats.save_graph(random_graph(5, seed=1), "g.json")
  formats.save_cluster(gpus(2), "c.json")
  os.symlink("g.json", "link.json")
  for model in ("m", "m/variables"):
    os.mkdir(model)
  shutil.copy("c.json", "m/saved_model.pb")
  shutil.copy("c.json", "net.py")
  return tmp_path


def content(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


@pytest.mark.parametrize(
  "command, arguments",
  [
    ("place", ["--graph=g.json", "--output=./g.json"]),
    ("place", ["--graph=g.json", "--output=link.json"]),
    ("place", ["--graph=g.json", "--timeline=new.png", "--trace=new.png"]),
    ("place", ["--graph=g.json", "--init_placement=net.py", "--output=net.py"]),
    ("extract", ["--graph=g.json", "--output=g.json"]),
    ("estimate", ["--graph_def=g.json", "--report=g.json"]),
    ("simulate", ["--graph=g.json", "--placement=c.json", "--trace=c.json"]),
    ("measure", ["--graph_def=g.json", "--output=g.json"]),
    ("train", ["--graphs=*.json", "--export_dir=g.json"]),
    ("train", ["--models=g.json", "--export_dir=m", "--checkpoint_dir=m"]),
    ("train", ["--export_dir=m", "--init_from=m"]),
    ("place", ["--saved_model=m", "--output_saved_model=m"]),
  ],
)
def test_every_command_refuses_to_overwrite(folder, command, arguments, capsys):
  before = content(folder)
  module = importlib.import_module(f"tfplace.bin.{command}")
  assert module.run([*arguments, "--cluster=c.json"]) == 1
  (error,) = capsys.readouterr().err.splitlines()
  assert "would be overwritten; give another path" in error
  assert content(folder) == before


def test_streams_and_names_are_no_files_to_protect(folder, capsys):
  from tfplace.bin import place

  os.mkdir("v100x2")  # Also the name of a preset.
  arguments = ["--graph=g.json", "--cluster=c.json", "--strategy=single"]
  outputs = ["--output=/dev/null", "--trace=/dev/null"]
  assert place.run([*arguments, *outputs]) == 0
  assert place.run([*arguments, "--output=v100x2/p.json"]) == 0
  assert place.run([*arguments, "--output=v100x2/p.json"]) == 0
  capsys.readouterr()
