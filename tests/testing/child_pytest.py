"""Tests that need a process of their own: runs them in a child.

Each test of the parent then says what became of it there. One child can run
many files, one after the other, so that TensorFlow is loaded once.
"""

import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence

CRASH = ""  # key of what a child said that ended without a report
_SERVER = ("-m", "tests.testing.child_server")


class PytestChild:
  """A child process that runs tests until it is closed.

  It starts with the first tests, and again with the next ones after it crashed
  or took too long.
  """

  def __init__(
    self, root: pathlib.Path, environment: Mapping[str, str], timeout_s: float
  ):
    """Nothing is started yet.

    Args:
      root: directory to start the child in.
      environment: the child's.
      timeout_s: seconds of one call of `run` after which it is stopped.
    """
    self._root = root
    self._environment = dict(environment)
    self._timeout_s = timeout_s
    self._process: subprocess.Popen[str] | None = None

  def __enter__(self) -> "PytestChild":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    if self._process is not None:
      self._process.kill()
      self._process.communicate()
      self._process = None

  def run(self, selected: Sequence[str]) -> dict[str, str | None]:
    """Runs tests: files, or tests as pytest names them.

    Returns:
      By "module::test", with its parameters, what failed, or None. `CRASH` is
      always there: why the others are not, or None.
    """
    with tempfile.TemporaryDirectory() as folder:
      report, log = (os.path.join(folder, name) for name in ("report", "log"))
      options = ["-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
      problem = self._ask({"arguments": [*options, *selected], "log": log})
      if problem is not None:
        self.close()
        return {CRASH: f"{problem}\n{_text(log)}"}
      if not os.path.exists(report):
        return {CRASH: _text(log)}
      return {CRASH: None, **_failures(report)}

  def _ask(self, request: dict[str, object]) -> str | None:
    """Sends a request; why there is no answer, or None."""
    process = self._started()
    assert process.stdin is not None and process.stdout is not None
    try:
      process.stdin.write(json.dumps(request) + "\n")
      process.stdin.flush()
    except BrokenPipeError:
      return "the child process is gone"
    if not select.select([process.stdout], [], [], self._timeout_s)[0]:
      return f"the tests took more than {self._timeout_s} s"
    if not process.stdout.readline():
      return f"the child process ended with {process.wait()}"
    return None

  def _started(self) -> subprocess.Popen[str]:
    if self._process is None:
      self._process = subprocess.Popen(
        [sys.executable, *_SERVER],
        cwd=self._root,
        env=self._environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
      )
    return self._process


def _text(path: str) -> str:
  if not os.path.exists(path):
    return ""
  with open(path, encoding="utf-8", errors="replace") as file:
    return file.read()


def _failures(report: str) -> dict[str, str | None]:
  results: dict[str, str | None] = {}
  for case in ElementTree.parse(report).iter("testcase"):
    module = case.get("classname", "").rpartition(".")[2]
    bad = [case.find(tag) for tag in ("failure", "error")]
    text = next((b.text or "" for b in bad if b is not None), None)
    results[f"{module}::{case.get('name')}"] = text
  return results
