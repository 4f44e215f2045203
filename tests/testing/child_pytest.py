"""Tests that need a process of their own: runs them in a child, once.

Each test of the parent then says what became of it there.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence

CRASH = ""  # key of what a child said that ended without a report


def run_child(
  root: pathlib.Path,
  selected: Sequence[str],
  environment: Mapping[str, str],
  timeout_s: float,
) -> dict[str, str | None]:
  """Runs tests in a child.

  Args:
    root: directory to start it in.
    selected: files, or tests as pytest names them.
    environment: the child's.
    timeout_s: seconds after which it is stopped.

  Returns:
    By "module::test", with its parameters, what failed, or None. `CRASH` is
    always there: why the others are not, or None.
  """
  with tempfile.TemporaryDirectory() as folder:
    report = os.path.join(folder, "report.xml")
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    try:
      done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *selected],
        check=False,
        cwd=root,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
      )
    except subprocess.TimeoutExpired:
      return {CRASH: f"the tests took more than {timeout_s} s"}
    if not os.path.exists(report):
      return {CRASH: done.stdout + done.stderr}
    return {CRASH: None, **_failures(report)}


def _failures(report: str) -> dict[str, str | None]:
  results: dict[str, str | None] = {}
  for case in ElementTree.parse(report).iter("testcase"):
    module = case.get("classname", "").rpartition(".")[2]
    bad = [case.find(tag) for tag in ("failure", "error")]
    text = next((b.text or "" for b in bad if b is not None), None)
    results[f"{module}::{case.get('name')}"] = text
  return results
