"""One run at a time in a checkpoint directory, and none after its death."""

import os
import signal
import subprocess
import sys

import pytest

from tests.testing import train_commands
from tests.testing.slow import slow
from tfplace import core, formats
from tfplace.errors import TrainingError
from tfplace.learned.training_process import only_run_in

HOLD = (
  "import sys; from tfplace.learned.training_process import only_run_in\n"
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


@pytest.mark.parametrize("end", ["SIGKILL", slow("exit"), slow("SIGTERM")])
def test_the_second_run_is_refused_until_the_first_has_ended(tmp_path, end):
  folder = tmp_path / "run"
  with holding(folder) as first:
    with (
      pytest.raises(TrainingError) as caught,
      only_run_in(folder),
    ):
      pass
    for word in (str(folder), f"process {first.pid}", "is in use"):
      assert word in str(caught.value)
    if end != "exit":
      first.send_signal(getattr(signal, end))
  with only_run_in(folder):
    assert (folder / "lock").read_text() == f"{os.getpid()}\n"


def test_another_directory_is_free(tmp_path):
  with (
    only_run_in(tmp_path / "a"),
    only_run_in(tmp_path / "b"),
  ):
    assert (tmp_path / "a" / "lock").exists()
    assert (tmp_path / "b" / "lock").exists()


@pytest.mark.parametrize("where", ["a file", "in a file", "of the kernel"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, where):
  (tmp_path / "file").write_text("")
  folder = {
    "a file": tmp_path / "file",
    "in a file": tmp_path / "file" / "run",
    "of the kernel": "/proc/tfplace",
  }[where]
  message = f"'{folder}' cannot be written"
  with (
    pytest.raises(TrainingError, match=message),
    only_run_in(folder),
  ):
    pass


@train_commands.needs_extra_train
def test_the_command_is_refused_in_one_line(tmp_path):
  ops = [core.OpSpec("a", "X", {"GPU": 1.0})]
  formats.save_graph(core.build_graph("tiny", ops, []), tmp_path / "tiny.json")
  cluster = core.Cluster("one", (core.Device("g0", "GPU"),))
  formats.save_cluster(cluster, tmp_path / "cluster.json")
  folder = tmp_path / "run"
  with holding(folder) as first:
    command = train_commands.train_command(
      tmp_path, f"--checkpoint_dir={folder}", f"--export_dir={tmp_path}/out"
    )
    done = subprocess.run(
      command,
      env=train_commands.environment(),
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(folder) in line and str(first.pid) in line
    assert os.listdir(folder) == ["lock"]
