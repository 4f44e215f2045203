"""Commands whose standard files are closed, full, or a pipe nobody reads."""

import importlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

import tfplace
from tfplace import errors, formats
from tfplace.formats import files
from tfplace.graph import OpSpec, build_graph
from tfplace.hardware.presets import cluster_preset

ROOT = pathlib.Path(tfplace.__file__).parent.parent
COMMANDS = {
  "table": "place --graph=g.json --cluster=p100x2 --strategy=single",
  "one line": "simulate --graph=g.json --cluster=p100x2 --placement=p.json",
  "explanation": "explain --graph=g.json --cluster=p100x2 --placement=p.json",
  "help": "place --help",
}


@pytest.fixture
def folder(tmp_path):
  graph = build_graph("g", [OpSpec("op", "X", {"GPU": 1.0})], [])
  formats.save_graph(graph, tmp_path / "g.json")
  device = cluster_preset("p100x2").devices[0].name
  content = f'"graph": "g", "assignments": {{"op": "{device}"}}'
  text = f'{{"format": "tfplace.placement.v1", {content}}}'
  (tmp_path / "p.json").write_text(text)
  return tmp_path


def ran(folder, command, redirection):
  """Exit code, output and errors of a command with a shell's redirection."""
  words = f"{sys.executable} -m tfplace.bin.{command} {redirection}"
  process = subprocess.run(
    ["bash", "-c", f"{words}; exit ${{PIPESTATUS[0]}}"],
    check=False,
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
    capture_output=True,
    text=True,
  )
  return process.returncode, process.stdout, process.stderr


@pytest.mark.parametrize(
  "command, redirection, why",
  [
    ("one line", ">/dev/full", "No space left on device"),
    ("help", "| true", "Broken pipe"),
  ],
)
def test_output_that_cannot_be_printed_is_one_line(
  folder, command, redirection, why
):
  words = COMMANDS[command]
  code, _, err = ran(folder, words, redirection)
  assert code == 1
  name = f"tfplace-{words.split()[0]}"
  assert err.startswith(f"{name}: error: ") and why in err
  assert err.count("\n") == 1


def test_an_error_is_the_line_where_output_is_closed(folder):
  code, out, err = ran(folder, "place --graph=none.json", ">&-")
  assert (code, out) == (1, "")
  assert err == "tfplace-place: error: --cluster is missing\n"


def test_outputs_do_not_take_the_place_of_closed_files(folder):
  words = f"{COMMANDS['table']} --output=made.json"
  assert ran(folder, words, "<&- >&- 2>&-") == (0, "", "")
  assert formats.load_assignments(str(folder / "made.json"))["op"]


@pytest.mark.parametrize("command", ["place", "explain"])
def test_output_is_printed_in_every_encoding(folder, command, monkeypatch):
  monkeypatch.chdir(folder)
  for name in ("g.json", "p.json"):
    text = (folder / name).read_text().replace('"op"', '"tänzer/µ→x"')
    (folder / name).write_text(text, encoding="utf-8")
  words = {"place": "table", "explain": "explanation"}[command]
  stream = io.TextIOWrapper(io.BytesIO(), "ascii")
  monkeypatch.setattr(sys, "stdout", stream)
  module = importlib.import_module(f"tfplace.bin.{command}")
  assert module.run(COMMANDS[words].split()[1:]) == 0
  assert stream.buffer.getvalue().decode("ascii")


def test_a_missing_temporary_folder_is_named(monkeypatch):
  def none():
    raise FileNotFoundError(2, "No usable temporary directory found")

  monkeypatch.setattr(tempfile, "gettempdir", none)
  monkeypatch.setenv("TMPDIR", "/nowhere")
  with pytest.raises(errors.FormatError, match="TMPDIR is '/nowhere'"):
    files.check_temporary_folder()
