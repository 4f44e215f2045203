"""Versions of libraries and extras, against what the package asks for."""

import dataclasses
import platform
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tfplace.bin.checks.findings import Finding

_PACKAGE = "tfplace"
# Other distributions of the same modules.
_VARIANTS = {"tensorflow": ("tensorflow-cpu",)}
# What an extra gives.
GIVES = {
  "train": "tfplace-train, which trains policies",
  "report": "--report, one HTML file with all pictures and tables",
  "dask": "--dask, searches on several machines",
  "fit": "kernel times fitted to measurements (benchmarks/gpu)",
  "docs": "the documents as a site",
  "test": "the tests",
}


@dataclasses.dataclass(frozen=True)
class Library:
  """An installed or missing library.

  Attributes:
    name: name of the distribution.
    version: installed version, or None.
    wanted: versions that tfplace supports, such as ">=2.21,<2.22".
    is_ok: whether the installed version is one of them.
  """

  name: str
  version: str | None
  wanted: str
  is_ok: bool

  @property
  def requirement(self) -> str:
    """Returns what pip installs."""
    return f"{self.name}{self.wanted}"


@dataclasses.dataclass(frozen=True)
class Extra:
  """An extra of the package.

  Attributes:
    name: its name.
    gives: what it gives; "" if this version of the doctor does not know it.
    libraries: what it asks for on this Python; none if it has nothing here.
  """

  name: str
  gives: str
  libraries: tuple[Library, ...]

  @property
  def is_installed(self) -> bool:
    """Returns whether all its libraries are there in the right versions."""
    return bool(self.libraries) and all(lib.is_ok for lib in self.libraries)

  @property
  def state(self) -> str:
    """Returns "installed", or what is missing and the way to get it."""
    if self.is_installed:
      return "installed"
    if not self.libraries:
      return f"not for Python {platform.python_version()}"
    lacking = [
      lib.name if lib.version is None else f"{lib.name} {lib.wanted}"
      for lib in self.libraries
      if not lib.is_ok
    ]
    return f"lacks {', '.join(lacking)}: pip install '{_PACKAGE}[{self.name}]'"


def requirements() -> tuple[Requirement, ...]:
  """Returns what the installed package asks for, extras included.

  Raises:
    PackageNotFoundError: the package runs without being installed.
  """
  return tuple(map(Requirement, metadata.requires(_PACKAGE) or ()))


def base_libraries() -> list[Library]:
  """Returns the libraries of the base install on this platform."""
  return [_library(r) for r in requirements() if _applies(r, "")]


def extras() -> list[Extra]:
  """Returns the extras, in the order of the package."""
  names = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
  asked = requirements()
  return [
    Extra(
      name,
      GIVES.get(name, ""),
      tuple(
        _library(r) for r in asked if _applies(r, name) and not _applies(r, "")
      ),
    )
    for name in names
  ]


def python_finding() -> Finding | None:
  """Returns a finding if this Python is not supported."""
  wanted = ",".join(
    metadata.metadata(_PACKAGE).get_all("Requires-Python") or []
  )
  version = platform.python_version()
  if SpecifierSet(wanted).contains(version, prereleases=True):
    return None
  return Finding(
    f"Python {version} is outside of {wanted}",
    "use a virtual environment of a supported Python",
  )


def findings_of(libraries: list[Library]) -> list[Finding]:
  """Returns the libraries that are missing or out of range."""
  found = []
  for library in libraries:
    if library.is_ok:
      continue
    problem = f"{library.name} is not installed (wanted {library.wanted})"
    if library.version is not None:
      problem = (
        f"{library.name} {library.version} is outside of {library.wanted}"
      )
    way_out = f"pip install '{library.requirement}'"
    found.append(Finding(problem, way_out))
  return found


def _applies(requirement: Requirement, extra: str) -> bool:
  marker = requirement.marker
  return marker is None or marker.evaluate({"extra": extra})


def _library(requirement: Requirement) -> Library:
  version = _installed(requirement.name)
  specifier = requirement.specifier
  wanted = ",".join(sorted(map(str, specifier), reverse=True))
  is_ok = version is not None and specifier.contains(version, prereleases=True)
  return Library(requirement.name, version, wanted, is_ok)


def _installed(name: str) -> str | None:
  for candidate in (name, *_VARIANTS.get(name, ())):
    try:
      return metadata.version(candidate)
    except metadata.PackageNotFoundError:
      continue
  return None
