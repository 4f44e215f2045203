"""tfplace-doctor: tells whether this installation works, and what to do."""

import dataclasses
import json
import math
import platform
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tfplace
from tfplace.bin.checks import children
from tfplace.bin.checks.findings import Finding, noted
from tfplace.errors import TfplaceError

if TYPE_CHECKING:
  from absl import flags

_NAME = "tfplace-doctor"
_DESCRIPTION = (
  "Shows devices, links, libraries, extras and caches as tfplace sees them, and"
  " trains a small placed model beside an unplaced one. Exits with 1 if"
  " something that tfplace needs is broken."
)
_PROBE_S, _SELF_TEST_S = 120.0, 300.0  # A first start compiles for a minute.
_SAME = 1e-4  # Relative difference of losses, which float32 explains.
_ORDER = (  # Sections of the screen.
  *("devices", "links", "would_be_measured", "libraries", "extras", "caches"),
  "self_test",
)


@dataclasses.dataclass
class Examination:
  """Findings of all checks.

  Attributes:
    findings: problems, in order of the checks.
    sections: title -> lines of the screen.
    data: the same for `--json`.
  """

  findings: list[Finding] = dataclasses.field(default_factory=list)
  sections: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  data: dict[str, Any] = dataclasses.field(default_factory=dict)

  def add(
    self, title: str, lines: Iterable[str], data: Any, found: Iterable[Finding]
  ) -> None:
    """Adds the lines, data and findings of one check."""
    self.sections[title] = list(lines)
    self.data[title] = data
    self.findings += found

  @property
  def broken(self) -> list[Finding]:
    """Returns the findings that keep tfplace from working."""
    return [finding for finding in self.findings if finding.is_broken]


def _define(values: "flags.FlagValues") -> None:
  from absl import flags

  flags.DEFINE_bool(
    "self_test",
    True,
    "Train a small placed model. The first time, this compiles for a minute.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "json", False, "Print all as JSON in the last line.", flag_values=values
  )


def _main(values: "flags.FlagValues") -> None:
  from tfplace.bin import cli

  about = {"tfplace": tfplace.__version__, "python": platform.python_version()}
  found = Examination(data=about)
  with (
    cli.showing_progress("Examining this installation") as on_stage,
    children.started("tfplace.bin.checks.probe") as probe,
  ):
    if not values.self_test:
      _examine(found, probe)
    else:
      with children.started("tfplace.bin.checks.self_test") as test:
        _examine(found, probe)
        on_stage("training a placed model")
        with noted("a placed step", found.findings):
          _self_test(found, test)
  _print(found)
  if values.json:
    findings = [dataclasses.asdict(finding) for finding in found.findings]
    data = {"ok": not found.broken, **found.data, "findings": findings}
    print(json.dumps(data))
  if found.broken:
    broken = "; ".join(finding.problem for finding in found.broken)
    raise TfplaceError(f"{len(found.broken)} broken: {broken}")


def _examine(found: Examination, probe: children.Child) -> None:
  """Adds all checks but the self-test. What a check imports may be broken."""
  wanted: dict[str, str] = {}
  with noted("versions", found.findings):
    wanted = _libraries(found)
  report = probe.report(_PROBE_S)
  with noted("devices", found.findings):
    _devices(found, report, wanted)
  with noted("caches", found.findings):
    _caches(found, report)


def _libraries(found: Examination) -> dict[str, str]:
  """Adds versions and extras; returns the requirement of each library."""
  from importlib import metadata

  from tfplace.bin.checks import libraries

  try:
    base, extras = libraries.base_libraries(), libraries.extras()
  except metadata.PackageNotFoundError:
    finding = Finding(
      "tfplace runs without being installed, so no versions are checked",
      "pip install it",
      is_broken=False,
    )
    found.add("libraries", [], [], [finding])
    return {}
  width = max(len(library.name) for library in base)
  lines = [
    f"{lib.name:{width}}  {lib.version or 'missing':10}  {lib.wanted}"
    for lib in base
  ]
  python = libraries.python_finding()
  findings = [*([python] if python else []), *libraries.findings_of(base)]
  about = [dataclasses.asdict(library) for library in base]
  found.add("libraries", lines, about, findings)
  width = max((len(extra.name) for extra in extras), default=0)
  lines = [
    f"{extra.name:{width}}  {extra.gives}: {extra.state}" for extra in extras
  ]
  told = [
    {"name": e.name, "gives": e.gives, "installed": e.is_installed}
    for e in extras
  ]
  found.add("extras", lines, told, [])
  return {lib.name: lib.requirement for lib in base if lib.version is not None}


def _devices(
  found: Examination, report: children.Report, wanted: dict[str, str]
) -> None:
  from tfplace.bin.checks import host

  about, facts = host.this_host(), report.facts
  findings = [
    *host.import_findings(report, wanted),
    *host.findings_of(about, facts),
  ]
  keys = ("gpus", "logical_devices", "backend")
  data = {**dataclasses.asdict(about), **{k: facts.get(k) for k in keys}}
  found.add("devices", host.device_lines(about, facts), data, findings)
  links = facts.get("links", [])
  found.add("links", host.link_lines(links), links, [])
  lines = list(host.measured_lines(about, facts))
  found.add("would_be_measured", lines, lines, [])


def _caches(found: Examination, report: children.Report) -> None:
  from tfplace.bin.checks import caches
  from tfplace.core.units import format_bytes

  every = [caches.graphs()]
  if "code_folders" in report.facts:
    every.append(caches.code(report.facts["code_folders"]))
  lines = [
    f"{c.name}: {c.folder or 'none'}, {c.num_files:,} files,"
    f" {format_bytes(c.num_bytes)}{'' if c.is_writable else ', not writable'}"
    for c in every
  ]
  data = [dataclasses.asdict(cache) for cache in every]
  found.add("caches", lines, data, caches.findings_of(every))


def _self_test(found: Examination, test: children.Child) -> None:
  """Adds the self-test; what is known to be broken is its reason."""
  from tfplace.report.names import listed

  report = test.report(_SELF_TEST_S)
  facts = report.facts
  if report.failure:
    text = f"{report.failure} while {report.stage}"
    reason = [] if found.broken else [_failed(text)]
    found.add("self_test", [text], {"passed": False}, reason)
    return
  expected, losses = facts["expected"], facts["losses"]
  devices = listed(facts["devices"])
  data = {
    "passed": True,
    "devices": facts["devices"],
    "losses": [x if math.isfinite(x) else None for x in losses],
    "expected_losses": expected,
    "place_seconds": facts["place_seconds"],
  }
  same = all(
    math.isclose(x, y, rel_tol=_SAME)
    for x, y in zip(losses, expected, strict=True)
  )
  wrong = ""
  if not same:
    wrong = f"its losses are {losses} and not {expected}"
  elif len(facts["devices"]) < 2:  # Ops without a GPU kernel need a CPU, too.
    wrong = f"it was placed on {devices} and not on two devices"
  if wrong:
    data["passed"] = False
    found.add("self_test", [wrong], data, [_failed(wrong)])
    return
  line = (
    f"a model on {devices}, placed in {facts['place_seconds']:.1f} s, has the"
    f" losses of the unplaced one: {', '.join(f'{x:.6g}' for x in losses)}"
  )
  found.add("self_test", [line], data, [])


def _failed(text: str) -> Finding:
  return Finding(
    f"the placed step of the self-test failed: {text}",
    "run `python -m tfplace.bin.checks.self_test` to see all of it, and report"
    " it",
  )


def _print(found: Examination) -> None:
  from rich.text import Text

  from tfplace.bin import cli

  screen = cli.open_console()
  python = platform.python_version()
  about = (
    f"tfplace {tfplace.__version__}, Python {python}, {platform.platform()}"
  )
  screen.print(Text(about), soft_wrap=True)
  for title in filter(found.sections.__contains__, _ORDER):
    words = title.replace("_", " ").capitalize()
    screen.print(Text(f"\n{words}", style="bold"))
    for line in found.sections[title] or ["none"]:
      screen.print(Text(f"  {line}"), soft_wrap=True)
  screen.print(Text("\nFindings", style="bold"))
  for finding in found.findings:
    kind = "broken" if finding.is_broken else "note"
    style = "red" if finding.is_broken else "yellow"
    screen.print(Text(f"  {kind}: {finding}", style=style), soft_wrap=True)
  if not found.broken:
    more = ", but see the notes" if found.findings else ""
    screen.print(Text(f"  All that tfplace needs works{more}."))


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  try:
    from tfplace.bin import guarded
  except ImportError as error:
    print(
      f"{_NAME}: error: 1 broken: {error.name or 'a library'} cannot be"
      f" imported ({error}): pip install --force-reinstall tfplace",
      file=sys.stderr,
    )
    return 1
  return guarded.run_command(_NAME, _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
