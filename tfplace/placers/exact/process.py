"""The exact search in a process of its own.

OR-tools and TensorFlow each bring their own copy of the same libraries, and a
process that has loaded both dies in the solver. So the search, which needs no
TensorFlow, runs in a fresh Python that never loads it. Its standard input is a
pipe that the parent holds: the end of that pipe ends it.
"""

import contextlib
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading

import numpy as np

import tfplace
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError

_GRACE_S = 120.0  # to start, compile and stop
_LONGEST_S = 1e6
_LENGTH_BYTES = 8  # of the number before the request


def search_apart(
  problem: Problem, limit_s: float, max_evaluations: int | None, seed: int
) -> tuple[float, np.ndarray, int]:
  """Runs `exact.search` in a child process.

  Returns:
    A proven bound in microseconds, [num_ops] devices, and the number of
    placements evaluated.

  Raises:
    TfplaceError: what the search raised, or the process died or hung.
  """
  limit_s = min(limit_s, _LONGEST_S)
  request = pickle.dumps((problem, limit_s, max_evaluations, seed))
  with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as log:
    code = _run(request, limit_s + _GRACE_S, answers, log)
    answers.seek(0)
    log.seek(0)
    if code:
      told = log.read().decode("utf-8", "replace").split()
      raise TfplaceError(
        f"strategy 'exact': the solver's process ended with exit code {code};"
        f" it said {' '.join(told)[-300:]!r}"
      )
    answer = pickle.load(answers)
  if isinstance(answer, TfplaceError):
    raise answer
  return answer


def _run(request: bytes, timeout_s: float, answers: object, log: object) -> int:
  """Starts the child, hands it the request, and waits; its exit code."""
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  path = os.environ.get("PYTHONPATH")
  child = subprocess.Popen(
    [sys.executable, "-m", "tfplace.placers.exact.process"],
    stdin=subprocess.PIPE,
    stdout=answers,  # type: ignore[call-overload]
    stderr=log,
    env={
      **os.environ,
      "PYTHONPATH": package + (os.pathsep + path if path else ""),
    },
  )
  try:
    with contextlib.suppress(BrokenPipeError):  # it died: its exit code tells
      child.stdin.write(len(request).to_bytes(_LENGTH_BYTES, "big") + request)
      child.stdin.flush()
    return child.wait(timeout_s)
  except subprocess.TimeoutExpired:
    raise TfplaceError(
      f"strategy 'exact': the solver gave no answer within {timeout_s:g} s"
    ) from None
  finally:
    child.kill()
    child.wait()
    with contextlib.suppress(BrokenPipeError):
      child.stdin.close()


def _main() -> None:
  requests = sys.stdin.buffer
  length = int.from_bytes(requests.read(_LENGTH_BYTES), "big")
  problem, limit_s, max_evaluations, seed = pickle.loads(requests.read(length))
  threading.Thread(target=_die_with_parent, daemon=True).start()
  from tfplace.placers.exact import placer

  answers = os.dup(1)  # whatever else is printed goes to stderr
  os.dup2(2, 1)
  try:
    bound_us, result = placer.search(problem, limit_s, max_evaluations, seed)
    answer: object = bound_us, result.placement.devices, result.evaluations
  except TfplaceError as error:
    answer = error
  with open(answers, "wb") as stream:
    stream.write(pickle.dumps(answer))
  os._exit(0)  # the thread that watches stdin holds its lock


def _die_with_parent() -> None:
  os.read(0, 1)  # returns when the parent is gone
  os._exit(1)


if __name__ == "__main__":
  _main()
