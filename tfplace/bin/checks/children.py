"""Child processes of tfplace-doctor, whose crash is a finding.

Importing a broken library can end a process. So whatever imports TensorFlow or
Numba runs in a child, which prints what it learns as it goes.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

import tfplace

_MARK = "tfplace-doctor:"
STAGE, ERROR = "stage", "error"  # Keys of facts.


@dataclasses.dataclass(frozen=True)
class Report:
  """Report of a child process.

  Attributes:
    facts: facts by key, in the order in which they were told.
    stage: what the child was doing last.
    failure: how it ended, as part of a sentence; "" if it did all its work.
  """

  facts: dict[str, Any]
  stage: str
  failure: str


def tell(key: str, value: Any) -> None:
  """Prints a fact for the parent; called in a child."""
  print(_MARK, json.dumps({key: value}), flush=True)


def run_in_child(work: Callable[[], None]) -> None:
  """Does the work of a child and tells its error, if any."""
  try:
    work()
  except Exception as error:
    text = " ".join(str(error).split()) or "no message"
    tell(ERROR, f"{type(error).__name__}: {text[:500]}")
    traceback.print_exc()


class Child:
  """A running child.

  Args:
    module: module that the child runs.
    extra_environment: environment variables beside those of this process.
  """

  def __init__(self, module: str, **extra_environment: str) -> None:
    package = str(pathlib.Path(tfplace.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    # What PYTHONPATH names comes first, as in this process.
    paths = os.pathsep.join([*([path] if path else []), package])
    self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    self._process = subprocess.Popen(
      [sys.executable, "-m", module],
      stdin=subprocess.DEVNULL,
      stdout=self._output,
      stderr=subprocess.STDOUT,
      env={
        **os.environ,
        "PYTHONPATH": paths,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "PYTHONSAFEPATH": "1",  # Not the modules of the working directory.
        **extra_environment,
      },
    )

  def report(self, timeout_s: float) -> Report:
    """Waits for the child and returns what it told."""
    failure = ""
    try:
      code = self._process.wait(timeout_s)
      if code < 0:
        failure = f"was ended by {signal.Signals(-code).name}"
      elif code > 0:
        failure = f"ended with code {code}"
    except subprocess.TimeoutExpired:
      self.stop()
      failure = f"did not end within {timeout_s:.0f} s"
    facts: dict[str, Any] = {}
    for line in self.output().splitlines():
      if line.startswith(_MARK):
        # A child that dies may leave half a line.
        with contextlib.suppress(json.JSONDecodeError):
          facts |= json.loads(line[len(_MARK) :])
    if ERROR in facts:
      failure = f"failed with {facts[ERROR]}"
    return Report(facts, str(facts.get(STAGE, "starting")), failure)

  def output(self) -> str:
    """Returns all that the child has printed."""
    self._output.seek(0)
    return self._output.read().decode(errors="replace")

  def stop(self) -> None:
    """Kills the child if it runs."""
    self._process.kill()
    self._process.wait()


@contextlib.contextmanager
def started(module: str, **extra_environment: str) -> Iterator[Child]:
  """Starts a child that runs a module; ends it on exit."""
  child = Child(module, **extra_environment)
  try:
    yield child
  finally:
    child.stop()
