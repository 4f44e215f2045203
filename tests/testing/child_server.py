"""A child process that runs tests for its parent, file after file.

Reads requests from standard input, one JSON object a line: the `arguments` of
pytest and the `log` that gets what they print. Answers each with a line.
"""

import gc
import json
import os
import sys

import pytest


def serve() -> None:
  answers = os.fdopen(os.dup(1), "w")
  for line in sys.stdin:
    request = json.loads(line)
    with open(request["log"], "wb") as log:
      os.dup2(log.fileno(), 1)
      os.dup2(log.fileno(), 2)
    pytest.main(request["arguments"])
    _forget_models()
    sys.stdout.flush()
    sys.stderr.flush()
    answers.write("done\n")
    answers.flush()


def _forget_models() -> None:
  """Frees the models of a file, so that those of the next have their names."""
  if "keras" in sys.modules:
    sys.modules["keras"].backend.clear_session()
  gc.collect()
  gc.freeze()  # what is left are modules: no collection need look at them


if __name__ == "__main__":
  serve()
