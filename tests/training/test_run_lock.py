"""One run at a time in a checkpoint directory, and none after its death."""

import os
import subprocess
import sys

import pytest

from tests.testing import train_commands
from tfplace.errors import TrainingError
from tfplace.training.process import only_run_in

HOLD = (
  "import sys; from tfplace.training.process import only_run_in\n"
  "with only_run_in(sys.argv[1]):\n"
  "  print(flush=True); sys.stdin.read()\n"
)


def holding(folder):
  process = subprocess.Popen(
    [sys.executable, "-c", HOLD, str(folder)],
    env=train_commands.environment(),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )
  process.stdout.readline()
  return process


def test_a_second_run_is_refused_until_the_first_ends(tmp_path):
  folder = tmp_path / "run"
  with holding(folder) as first:
    with pytest.raises(TrainingError) as caught, only_run_in(folder):
      pass
    for word in (str(folder), f"process {first.pid}", "is in use"):
      assert word in str(caught.value)
    first.kill()
  with only_run_in(folder), only_run_in(tmp_path / "other"):
    assert (folder / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("where", ["file", "file/run", "/proc/tfplace"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, where):
  (tmp_path / "file").write_text("")
  message = f"'{tmp_path / where}' cannot be written"
  with (
    pytest.raises(TrainingError, match=message),
    only_run_in(tmp_path / where),
  ):
    pass
