"""The installed package is complete: version, data files, commands."""

import importlib.util
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata

import pytest

import tfplace
from tests.testing.slow import SLOW

ROOT = pathlib.Path(__file__).parents[1]
DATA = {
  path.relative_to(ROOT).as_posix()
  for path in (ROOT / "tfplace").rglob("*")
  if path.is_file()
  and path.suffix not in (".py", ".pyc", ".nbi", ".nbc")
  and path.name != "BUILD"
  and "__pycache__" not in path.parts
}


@pytest.fixture(scope="module", name="built")
def _built(tmp_path_factory):
  """A wheel and an sdist of the checkout, from a copy of it."""
  folder = tmp_path_factory.mktemp("built")
  copy = folder / "copy"
  for path in [
    *ROOT.glob("*.*"),
    ROOT / "LICENSE",
    *(ROOT / "tfplace").rglob("*"),
  ]:
    if path.is_file() and "__pycache__" not in path.parts:
      target = copy / path.relative_to(ROOT)
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_bytes(path.read_bytes())
  for kind, format_ in (("bdist_wheel", ()), ("sdist", ("--formats=gztar",))):
    command = [sys.executable, "setup.py", "-q", kind, *format_, "-d", "dist"]
    subprocess.run(
      command, cwd=copy, check=True, capture_output=True, timeout=120
    )
  return copy / "dist"


def test_the_version_is_that_of_the_package(built):
  (wheel,) = built.glob("*.whl")
  assert wheel.name.startswith(f"tfplace-{tfplace.__version__}-py3")
  assert metadata.version("tfplace") == tfplace.__version__


def test_wheel_and_sdist_have_every_module_and_every_data_file(built):
  modules = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tfplace").rglob("*.py")
  }
  (wheel,) = built.glob("*.whl")
  (sdist,) = built.glob("*.tar.gz")
  assert len(DATA) > 10
  assert "tfplace/py.typed" in DATA
  assert modules | DATA <= set(zipfile.ZipFile(wheel).namelist())
  with tarfile.open(sdist) as archive:
    names = {name.partition("/")[2] for name in archive.getnames()}
  assert modules | DATA | {"README.md", "pyproject.toml"} <= names


def test_the_description_has_no_link_into_a_checkout(built):
  (wheel,) = built.glob("*.whl")
  name = f"tfplace-{tfplace.__version__}.dist-info/METADATA"
  text = zipfile.ZipFile(wheel).read(name).decode()
  assert "Description-Content-Type: text/markdown" in text
  assert "\n# tfplace\n" in text
  assert set(re.findall(r"\]\((\w+)", text)) <= {"https"}
  spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
  setup = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(setup)
  linked = setup.long_description("https://example.org/tfplace")
  assert "(https://example.org/tfplace/raw/main/benchmarks/results/" in linked
  assert (
    "[Keras](https://example.org/tfplace/blob/main/docs/keras.md)" in linked
  )
  assert "[keeps XLA](#results)" in linked


def test_wheel_is_the_package_and_nothing_else(built):
  (wheel,) = built.glob("*.whl")
  tops = {n.split("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
  assert tops == {"tfplace", f"tfplace-{tfplace.__version__}.dist-info"}


@SLOW  # It compiles the kernels anew.
def test_a_graph_is_placed_by_the_wheel_without_the_checkout(built, tmp_path):
  (wheel,) = built.glob("*.whl")
  zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
  code = (
    "import tfplace;"
    "ops = [tfplace.OpSpec(n, 'MatMul', {'GPU': 5.0, 'CPU': 50.0}, [8.0])"
    " for n in 'ab'];"
    "graph = tfplace.build_graph('g', ops, [(0, 0, 1)]);"
    "problem = tfplace.Problem(graph, tfplace.cluster_preset('v100x2'));"
    "result = tfplace.place(problem, strategy='blocks', budget_s=5);"
    "print(tfplace.__file__, result.evaluation.feasible)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=tmp_path,
    env={"PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split()[0].startswith(str(tmp_path / "installed"))
  assert done.stdout.split()[1] == "True"
