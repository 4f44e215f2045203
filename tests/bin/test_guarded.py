"""Whatever a command dies of, it ends with an exit code and one line."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tfplace.bin import guarded

HEAD = """
import os, signal, sys, time
from tfplace.bin import guarded
"""


def start(body, **options):
  """A process that guards a function `work` of this body."""
  work = "def work():\n" + textwrap.indent(textwrap.dedent(body), "  ")
  code = f"{HEAD}\n{work}\nsys.exit(guarded.run('command', work))"
  return subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    **options,
  )


FATAL = "F0000 00:00:17.5 1 abort.cc:1] Check failed: a == b (1 vs. 2)"
# Name -> body, exit code, what stderr says.
ENDS = {
  "done": ("return 0", 0, ""),
  "failed": ("return 1", 1, ""),
  "interrupted": ("return 130", 130, ""),
  "exit 0": ("os._exit(0)", 1, "ended with code 0 in the middle"),
  "exit 7": ("os._exit(7)", 1, "ended with code 7 in the middle"),
  "abort": ("os.abort()", 1, "ended by SIGABRT in the middle"),
  "segmentation": (
    "os.kill(os.getpid(), signal.SIGSEGV); time.sleep(9)",
    1,
    "ended by SIGSEGV in the middle",
  ),
  "memory": (
    "os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)",
    1,
    "the system does so when memory runs out",
  ),
  "check": (
    f"""
    with guarded.holding_notices():
      os.write(2, b"{FATAL}\\n*** Check failure stack trace: ***\\n")
      os.abort()
    """,
    1,
    "SIGABRT in the middle of its work: TensorFlow says 'Check failed: a == b",
  ),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_has_a_code_and_at_most_one_line(end):
  body, code, words = ENDS[end]
  process = start(body)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == code
  assert words in errors
  lines = errors.splitlines()
  assert len(lines) == bool(words)
  assert all(line.startswith("command: error: ") for line in lines)


def test_what_was_held_back_is_shown_in_the_end():
  process = start(
    """
    with guarded.holding_notices():
      os.write(2, b"from C++\\n")
      print("from Python", file=sys.stderr)
    return 0
    """
  )
  _, errors = process.communicate(timeout=60)
  assert errors == "from Python\nfrom C++\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(number):
  process = start(
    """
    def end(number, frame):
      print("got", number, flush=True)
      raise SystemExit
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, end)
    try:
      print("ready", flush=True)
      time.sleep(60)
    except SystemExit:
      return 99
    """
  )
  assert process.stdout.readline() == "ready\n"
  process.send_signal(number)
  out, _ = process.communicate(timeout=60)
  assert (process.returncode, out) == (99, f"got {int(number)}\n")


def test_the_child_ends_with_its_parent():
  process = start("print(os.getpid(), flush=True)\ntime.sleep(600)")
  child = int(process.stdout.readline())
  assert child != process.pid
  process.kill()
  process.wait()
  deadline = time.monotonic() + 300  # it sleeps for 600 s
  while pathlib.Path(f"/proc/{child}").exists():
    assert time.monotonic() < deadline, "the child outlived its parent"
    time.sleep(0.05)


def test_with_arguments_it_runs_in_this_process():
  assert guarded.run("command", os.getpid, []) == os.getpid()


@pytest.mark.parametrize("quietly", [True, False])
def test_a_model_that_ends_the_process_is_one_line(tmp_path, quietly):
  import tensorflow as tf

  tf1 = tf.compat.v1
  with tf.Graph().as_default(), tf1.Session() as session:
    x = tf1.placeholder(tf.float32, (2,), name="x")
    ends = {"x": x}, {"y": x + 1.0}
    abort = tf.raw_ops.Abort(error_msg="boo", exit_without_error=quietly)
    builder = tf1.saved_model.Builder(str(tmp_path / "model"))
    signature = tf1.saved_model.predict_signature_def(*ends)
    builder.add_meta_graph_and_variables(
      *(session, ["serve"], {"serving_default": signature}), main_op=abort
    )
    builder.save()
  done = subprocess.run(
    [
      *(sys.executable, "-m", "tfplace.bin.extract"),
      *("--cluster=v100x1", "--allow_side_effects", "--graph_cache_dir="),
      f"--saved_model={tmp_path / 'model'}",
      f"--output={tmp_path / 'graph.json'}",
    ],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
  )
  assert done.returncode == 1
  how = "with code 0 in the middle" if quietly else "SIGABRT .* says 'Abort_op"
  assert re.search(how, done.stderr)
  assert len(done.stderr.splitlines()) == 1
