"""Builds the package; pyproject.toml says what it is.

The long description is the README. Its relative links lead nowhere outside of
a checkout: they are made absolute by `Source` of `[project.urls]`, the address
of the repository. Without one, links are words, and pictures are left out.
"""

import pathlib
import re
import tomllib

import setuptools

ROOT = pathlib.Path(__file__).parent
_RELATIVE = re.compile(r"(!?)\[([^]]+)\]\((?!https?:|#)([^)]+)\)")


def long_description(source: str | None) -> str:
  """Returns the README with links to the repository `source`."""

  def link(found: re.Match[str]) -> str:
    picture, text, path = found.groups()
    if source is None:
      return "" if picture else text
    kind = "raw" if picture else "blob"
    return f"{picture}[{text}]({source}/{kind}/main/{path})"

  readme = (ROOT / "README.md").read_text(encoding="utf-8")
  return _RELATIVE.sub(link, readme)


if __name__ == "__main__":
  project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
  urls = project["project"].get("urls", {})
  setuptools.setup(
    long_description=long_description(urls.get("Source")),
    long_description_content_type="text/markdown",
  )
