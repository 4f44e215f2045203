"""MkDocs: pages that lie beside docs/ join the site, and links follow them.

In the repository every link is relative to its own file. On the site the README
is the first page, and files of benchmarks/results and examples have folders of
their own.
"""

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Repository -> site.
PAGES = {
  "README.md": "index.md",
  "CHANGELOG.md": "changelog.md",
  "CONTRIBUTING.md": "contributing.md",
  "SECURITY.md": "security.md",
  "benchmarks/README.md": "benchmarks.md",
  "examples/README.md": "examples.md",
}
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
  """Adds the pages, results and examples from outside of docs/."""
  extra = {
    **PAGES,
    "LICENSE": "LICENSE.txt",
    **{_name(path): f"results/{path.name}" for path in _results()},
    "benchmarks/sets.py": "benchmarks/sets.py",
    **{_name(path): _name(path) for path in _examples()},
  }
  for source, target in extra.items():
    path = str(ROOT / source)
    files.append(File.generated(config, target, abs_src_path=path))
  return files


def _results() -> list[pathlib.Path]:
  folder = ROOT / "benchmarks" / "results"
  return [path for path in folder.glob("[!.]*.*") if path.is_file()]


def _examples() -> list[pathlib.Path]:
  folder = ROOT / "examples"
  kinds = ("*.py", "*.ipynb", "*.yml", "*.yaml", "*.sbatch")
  return [path for kind in kinds for path in folder.glob(kind)]


def on_page_markdown(
  markdown: str, *, page: Any, config: Any, files: Files
) -> str:
  """Rewrites relative links, of the repository, to those of the site."""
  origin = {site: source for source, site in PAGES.items()}
  site = page.file.src_uri
  folder = "benchmarks" if site.startswith("results/") else "docs"
  here = origin.get(site, f"{folder}/{site}")

  def follow(found: re.Match[str]) -> str:
    link, anchor = found[1], found[2] or ""
    if ":" in link:
      return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    link = posixpath.relpath(_on_site(target), posixpath.dirname(site) or ".")
    return f"]({link}{anchor})"

  parts = _FENCE.split(markdown)
  return "".join(
    part if part.startswith("```") else _LINK.sub(follow, part)
    for part in parts
  )


def _on_site(path: str) -> str:
  """Returns the path on the site of a file of the repository."""
  if path == "LICENSE":
    return "LICENSE.txt"
  for folder, target in (("docs/", ""), ("benchmarks/results/", "results/")):
    if path.startswith(folder):
      return target + path.removeprefix(folder)
  return PAGES.get(path, path)


def _name(path: pathlib.Path) -> str:
  return path.relative_to(ROOT).as_posix()
