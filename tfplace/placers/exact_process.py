"""The exact search in a process of its own.

OR-tools and TensorFlow each bring their own copy of the same libraries, and a
process that has loaded both dies in the solver. So the search, which needs no
TensorFlow, runs in a fresh Python that never loads it.
"""

import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np

import tfplace
from tfplace.errors import TfplaceError
from tfplace.graph.problem import Problem

_GRACE_S = 120.0  # to start, compile and stop


def search_apart(
  problem: Problem, limit_s: float, max_evaluations: int | None, seed: int
) -> tuple[float, np.ndarray, int]:
  """Runs `exact.search` in a child process.

  Returns:
    A proven bound in microseconds, [num_ops] devices, and the number of
    placements evaluated.

  Raises:
    TfplaceError: what the search raised, or the process died.
  """
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  path = os.environ.get("PYTHONPATH")
  done = subprocess.run(
    [sys.executable, "-m", "tfplace.placers.exact_process"],
    input=pickle.dumps((problem, limit_s, max_evaluations, seed)),
    capture_output=True,
    timeout=limit_s + _GRACE_S,
    check=False,
    env={
      **os.environ,
      "PYTHONPATH": package + (os.pathsep + path if path else ""),
    },
  )
  if done.returncode:
    told = done.stderr.decode("utf-8", "replace").split()
    raise TfplaceError(
      "strategy 'exact': the solver's process ended with exit code"
      f" {done.returncode}; it said {' '.join(told)[-300:]!r}"
    )
  answer = pickle.loads(done.stdout)
  if isinstance(answer, TfplaceError):
    raise answer
  return answer


def _main() -> None:
  from tfplace.placers import exact

  answers = os.dup(1)  # whatever else is printed goes to stderr
  os.dup2(2, 1)
  problem, limit_s, max_evaluations, seed = pickle.load(sys.stdin.buffer)
  try:
    bound_us, result = exact.search(problem, limit_s, max_evaluations, seed)
    answer: object = bound_us, result.placement.devices, result.evaluations
  except TfplaceError as error:
    answer = error
  with open(answers, "wb") as stream:
    stream.write(pickle.dumps(answer))


if __name__ == "__main__":
  _main()
