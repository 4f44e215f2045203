"""Ctrl-C and SIGTERM: a process ends soon, with one line, leaving nothing."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import tfplace
from tests.testing.clusters import linked
from tfplace import formats
from tfplace.graph import Device, OpSpec, build_graph

ROOT = pathlib.Path(tfplace.__file__).parent.parent
ENDS_WITHIN_S = 200.0  # 2 s on an idle machine; what it does takes 600
SIGNALS = {
  signal.SIGINT: (130, "interrupted"),
  signal.SIGTERM: (143, "terminated"),
}


def started(folder, *command):
  """A process whose handlers are in place; its parent ignores nothing."""
  process = subprocess.Popen(
    [sys.executable, *map(str, command)],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
  )
  while process.poll() is None and not catches_sigterm(process.pid):
    time.sleep(0.005)
  return process


def catches_sigterm(pid):
  status = pathlib.Path(f"/proc/{pid}/status").read_text()
  (mask,) = [li for li in status.splitlines() if li.startswith("SigCgt")]
  return int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def ended(process, number):
  """Sends the signal; what the process printed, and in how many seconds."""
  process.send_signal(number)
  began = time.monotonic()
  out, err = process.communicate(timeout=600)
  assert time.monotonic() - began < ENDS_WITHIN_S
  code, word = SIGNALS[number]
  assert process.returncode == code, err
  assert re.fullmatch(rf"tfplace-[a-z]+: {word}\n", err)
  return out


@pytest.fixture
def problem(tmp_path):
  # A hundred ops: `auto` searches all of its minute.
  ops = [OpSpec(f"op{i}", "X", {"GPU": 1.0 + i % 7}, [i]) for i in range(100)]
  edges = [(i, 0, j) for i in range(100) for j in (i + 3, i + 7) if j < 100]
  inputs = tmp_path / "in"
  inputs.mkdir()
  formats.save_graph(build_graph("net", ops, edges), inputs / "g.json")
  devices = [Device(f"g{i}", "GPU") for i in range(3)]
  formats.save_cluster(linked(devices, 9.0), inputs / "c.json")
  (tmp_path / "out").mkdir()
  return tmp_path


# Seconds after the handlers are in place; the imports take about one.
@pytest.mark.parametrize(
  "way, number, after_s",
  [
    ("module", signal.SIGINT, 0.3),
    ("script", signal.SIGTERM, 0.0),
  ],
)
def test_a_command_ends_from_its_first_moment_on(problem, number, after_s, way):
  command = ["-m", "tfplace.bin.place"]
  if way == "script":  # as pip writes it
    command = [problem / "tfplace-place"]
    command[0].write_text(
      "import sys\nfrom tfplace.bin.place import run\nsys.exit(run())\n"
    )
  process = started(
    problem / "out",
    *command,
    f"--graph={problem}/in/g.json",
    f"--cluster={problem}/in/c.json",
    "--strategy=annealing",
    "--output=p.json",
  )
  time.sleep(after_s)
  assert ended(process, number) == ""
  assert os.listdir(problem / "out") == []


# Work of a command -> code; each first says that it works.
DOING = {
  "writing": "while True: files.write_bytes('file', b'x' * 3_000_000)",
  "deaf": (
    "with files.new_file('.'):\n"
    "    child = subprocess.Popen(['sleep', '60'])\n"
    "    while True:\n"
    "      try: time.sleep(600)\n"
    "      except BaseException: pass"
  ),
}
PROGRAM = """
import subprocess, sys, time
from tfplace.bin import cli
from tfplace.formats import files
def main(values):
  print('doing', flush=True)
  {}
sys.exit(cli.command('tfplace-test: ', lambda values: None, main)([]))
"""


def children_named(name, folder):
  """Processes of a name in a folder: what a command may have left."""
  found = []
  for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
      comm = pathlib.Path(f"/proc/{entry}/comm").read_text().strip()
      if comm == name and os.readlink(f"/proc/{entry}/cwd") == str(folder):
        found.append(int(entry))
    except OSError:  # it ended, or is another user's
      continue
  return found


@pytest.mark.parametrize("case", DOING)
def test_a_command_ends_soon_whatever_it_does(tmp_path, case):
  number = [*SIGNALS][list(DOING).index(case) % 2]
  program = tmp_path / "tfplace-test"
  program.write_text(PROGRAM.format(DOING[case]))
  folder = tmp_path / "folder"
  folder.mkdir()
  process = started(folder, program)
  assert process.stdout.readline() == "doing\n"
  time.sleep(0.1)
  ended(process, number)
  assert not set(os.listdir(folder)) - {"file"}
  assert not children_named("sleep", folder)


def test_a_second_signal_ends_it_at_once(tmp_path):
  program = tmp_path / "tfplace-test"
  patient = "from tfplace.bin import signals\nsignals._GRACE_S = 600.0\n"
  program.write_text(patient + PROGRAM.format(DOING["deaf"]))
  process = started(tmp_path, program)
  process.stdout.readline()
  deadline = time.monotonic() + 300  # the first alone takes 600 s
  while process.poll() is None and time.monotonic() < deadline:
    process.send_signal(signal.SIGINT)  # two at once would be one
    time.sleep(0.2)
  assert process.wait(1) == 130
  assert os.listdir(tmp_path) == ["tfplace-test"]


def test_a_signal_that_the_parent_ignores_stays_ignored(tmp_path):
  program = tmp_path / "tfplace-test"
  program.write_text(PROGRAM.format("time.sleep(1)"))
  process = subprocess.Popen(
    [sys.executable, program],
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    stdout=subprocess.PIPE,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
  )
  process.stdout.readline()
  process.send_signal(signal.SIGINT)
  assert process.wait(60) == 0
