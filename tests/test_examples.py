"""Scripts and notebooks of examples/ run and say what they should."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
from absl import flags

from tests.testing import notebooks
from tests.testing.slow import SLOW
from tfplace.bin import place
from tfplace.measure.remote import resolvers

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
SAYS = {
  "custom_placer": "longest_first",
  "edit_a_plan": "right_3 computes on /job:localhost/replica:0/task:0/device:"
  "CPU:1",
  "place_graph": "by hand",
  "place_keras_model": "Epoch 2/2",
  "what_if": "times the proven bound",
}
SHARED = {"budget", "two_towers"}
# Notebook -> what its output must contain, as patterns.
NOTEBOOKS = {
  "bert_on_two_devices": (r"losses differ by at most \d", "CPU:0", "CPU:1"),
  "model_that_does_not_fit": (r"\d images", "microbatches|recomputed"),
  "unequal_devices": ("GPU:3", r"\d+x\d+ with \d Axes"),
}
# Notebook -> pairs of plans, whose step times it prints: the first is faster.
FASTER = {
  "model_that_does_not_fit": [("auto", "as it is")],
  "unequal_devices": [("all four", "data parallel"), ("all four", "two V100s")],
}


# TensorFlow is loaded once; what configures devices goes first.
RUN = f"""
import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
sys.argv[1:] = ["--budget_s=1"]
for name in ("place_keras_model", "edit_a_plan", "what_if", "custom_placer"):
  print("==", name, flush=True)
  runpy.run_path(f"{FOLDER}/{{name}}.py", run_name="__main__")
"""


def test_examples_run():
  done = subprocess.run(
    [sys.executable, "-c", RUN],
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  shown = dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])
  assert shown.keys() == {*SAYS} - {"place_graph"}
  for name, text in shown.items():
    assert SAYS[name] in text


@SLOW  # Their seconds of search are for an idle machine.
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name, tmp_path):
  if "bert" in name and importlib.util.find_spec("keras_hub") is None:
    pytest.skip("keras-hub of the extra `test` is not installed")
  shown = notebooks.run(FOLDER / f"{name}.ipynb", tmp_path)
  for pattern in NOTEBOOKS[name]:
    assert re.search(pattern, shown), shown
  numbers = dict(re.findall(r"^(\w[^:\n]*): +([\d.]+) ms", shown, re.MULTILINE))
  for faster, slower in FASTER.get(name, ()):
    assert float(numbers[faster]) < float(numbers[slower])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_keeps_no_output_and_links_to_files(name):
  path = FOLDER / f"{name}.ipynb"
  for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
    assert not cell.get("outputs")
  for text in notebooks.cells(path, "markdown"):
    for link in re.findall(r"\]\(([^)#]+)", text):
      assert link.startswith("https://") or (FOLDER / link).exists(), link


def test_every_example_is_tested_and_listed():
  assert {path.stem for path in FOLDER.glob("*.py")} == {*SAYS, *SHARED}
  listed = (FOLDER / "README.md").read_text(encoding="utf-8")
  assert all(f"python examples/{name}.py" in listed for name in SAYS)
  assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)
  assert all(f"({name}.ipynb)" in listed for name in NOTEBOOKS)


def test_the_graph_example_does_not_load_tensorflow():
  code = (
    f"import runpy, sys; sys.path.insert(0, {str(FOLDER)!r});"
    "sys.argv[1:] = ['--budget_s=1'];"
    "runpy.run_module('place_graph', run_name='__main__');"
    "print('tensorflow' in sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert SAYS["place_graph"] in done.stdout
  assert done.stdout.splitlines()[-1] == "False"


def test_job_file_gives_flags_that_parse():
  text = (FOLDER / "slurm.sbatch").read_text(encoding="utf-8")
  words = re.findall(r"--\w+(?:=\S+)?", text.split("tfplace-place")[-1])
  values = flags.FlagValues()
  place._define(values)
  assert values(["tfplace-place", *words]) == ["tfplace-place"]
  assert values.measure
  assert resolvers.is_resolver(values.cluster.strip('"'))
