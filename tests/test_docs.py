"""Documents: links resolve, examples run, command lines parse, tables hold."""

import importlib
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys

import pytest
from absl import flags

from tfplace.formats import save_graph
from tfplace.graph import OpSpec, build_graph
from tfplace.placers import STRATEGIES

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
  path.relative_to(ROOT).as_posix()
  for pattern in ("*.md", "docs/*.md", "examples/*.md", "benchmarks/*.md")
  for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TESTED = re.compile(
  r"<!-- test: ([^>]+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def text_of(page):
  return (ROOT / page).read_text(encoding="utf-8")


def anchors(page):
  """The anchors of a page's headings, as GitHub and MkDocs make them."""
  headings = re.findall(
    r"^#+ (.+)$", _FENCE.sub("", text_of(page)), re.MULTILINE
  )
  kept = (re.sub(r"[^\w\- ]", "", h.lower()) for h in headings)
  return {heading.strip().replace(" ", "-") for heading in kept}


def examples():
  """(page, name) -> the code of a page's blocks of that name, in order.

  A block may belong to several examples: `<!-- test: one, other -->`.
  """
  found = {}
  for page in PAGES:
    for names, code in _TESTED.findall(text_of(page)):
      for name in names.split(", "):
        found[page, name] = found.get((page, name), "") + code + "\n"
  return found


EXAMPLES = examples()
# Example -> module whose `check` is given the names that it defines.
CHECKS = {("docs/custom_loops.md", "steps"): "tests.testing.custom_loops"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page):
  for link in _LINK.findall(_FENCE.sub("", text_of(page))):
    if link.startswith(("https://", "http://", "mailto:")):
      continue
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    assert target.exists(), f"{page} links to {link}"
    if anchor:
      found = target.resolve().relative_to(ROOT)
      assert anchor in anchors(found), f"{page} links to {link}"


@pytest.mark.parametrize("page", PAGES)
def test_programs_and_modules_that_are_named_exist(page):
  text = text_of(page)
  programs = re.findall(r"python3? ((?:benchmarks|examples)/[\w/]+\.py)", text)
  for name in re.findall(r"python3? -m (benchmarks\.[\w.]+)", text):
    programs.append(name.replace(".", "/") + ".py")
  modules = re.findall(r"`(tfplace/[\w/]+(?:\.py|\.json)?)", text)
  for path in programs + modules:
    assert (ROOT / path).exists(), f"{page} names {path}"


def commands():
  """The names after `tfplace-` of the console scripts."""
  return re.findall(r"^tfplace-(\w+) = ", text_of("pyproject.toml"), re.M)


def command_lines():
  """(page, words) of every tfplace command in a block of shell code."""
  for page in PAGES:
    for code in _SHELL.findall(text_of(page)):
      for line in code.splitlines():
        for part in line.split(" | "):
          found = re.search(r"(?:^|[/ ])(tfplace-\w+ .*)", part)
          if found:
            yield page, shlex.split(found[1].split(" && ")[0], comments=True)


@pytest.mark.parametrize(
  ("page", "words"),
  command_lines(),
  ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_command_line_parses(page, words):
  name = words[0].removeprefix("tfplace-")
  module = importlib.import_module(f"tfplace.bin.{name}")
  values = flags.FlagValues()
  module._define(values)
  assert values(words) == words[:1], f"{page}: {shlex.join(words)}"


def benchmark_lines():
  """(page, module, words) of every command that runs a benchmark."""
  pattern = r"python -m (benchmarks[\w.]+)([^`\n]*)"
  for page in PAGES:
    for name, rest in re.findall(pattern, text_of(page)):
      yield page, name, shlex.split(rest)


@pytest.mark.parametrize(
  ("page", "name", "words"),
  benchmark_lines(),
  ids=lambda value: "" if isinstance(value, list) else value,
)
def test_benchmark_command_parses(page, name, words, capsys):
  text = text_of(f"{name.replace('.', '/')}.py")
  if "OPTIONS" in text:
    options = importlib.import_module(name).OPTIONS
    code = options.call(lambda _: None, words)
    assert code == 0, f"{page}: {capsys.readouterr().err}"
  else:  # It needs the extra `fit`.
    given = re.findall(r"--(?:no)?(\w+)", " ".join(words))
    missing = [flag for flag in given if f'"{flag}"' not in text]
    assert not missing, f"{page}: {name} has no flag {missing}"


@pytest.mark.parametrize("name", commands())
def test_every_flag_is_documented(name):
  values = flags.FlagValues()
  importlib.import_module(f"tfplace.bin.{name}")._define(values)
  text = "\\n".join(map(text_of, PAGES))
  documented = set(re.findall(r"--(?:no)?(\w+)", text))
  assert set(values) - {"debug"} <= documented


def checked_example(page, name):
  """The code of an example, whose searches are short, and its check."""
  code = re.sub(r"budget_s=\d+", "budget_s=2", EXAMPLES[page, name])
  if (page, name) not in CHECKS:
    return code
  return (
    f"{code}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    f"from {CHECKS[page, name]} import check\ncheck(globals())\n"
  )


@pytest.mark.parametrize(
  ("page", "name"), EXAMPLES, ids=[f"{p}:{n}" for p, n in EXAMPLES]
)
def test_example_runs(page, name, tmp_path):
  # Two chains of two ops, which two devices do side by side.
  ops = [OpSpec("in", "Placeholder", {"CPU": 1.0, "GPU": 1.0}, [8.0])]
  edges = []
  for op, source in (("a", 0), ("a/1", 1), ("b", 0), ("b/1", 3)):
    ops.append(OpSpec(op, "MatMul", {"CPU": 900.0, "GPU": 100.0}, [8.0]))
    edges.append((source, 0, len(ops) - 1))
  save_graph(build_graph("two_chains", ops, edges), tmp_path / "graph.json")
  done = subprocess.run(
    [sys.executable, "-c", checked_example(page, name)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def test_every_strategy_is_in_the_table_of_strategies():
  text = text_of("docs/architecture.md")
  table = text.split("| strategy |")[1].split("\n- ")[0]
  first = re.findall(r"^ *\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
  assert set(re.findall(r"`(\w+)`", " ".join(first))) == set(STRATEGIES)


def test_every_command_is_in_the_table_of_commands():
  text = text_of("docs/commands.md")
  said = re.findall(r"^\| `(tfplace-\w+)", text, re.MULTILINE)
  assert set(said) == {f"tfplace-{name}" for name in commands()}


@pytest.mark.parametrize(
  "name", re.findall(r"^::: (\S+)$", text_of("docs/reference.md"), re.MULTILINE)
)
def test_what_the_reference_documents_exists(name):
  assert pkgutil.resolve_name(name).__doc__
