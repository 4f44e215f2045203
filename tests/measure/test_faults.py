"""Faults of real placements: survived, told, charged to nobody else."""

import contextlib
import math
import os
import pathlib
import signal
import tempfile
import threading
import time

import numpy as np

from tests.testing.harnesses import harness_of
from tests.testing.small_steps import Step, faulty_step
from tfplace.measure.local import runtime
from tfplace.measure.local.devices import WorkerCluster

HANGS_AFTER_S = 2.0
# Fault -> the kind and the words of its error.
TOLD = {
  "kill": ("died", "worker 1 was killed by SIGKILL"),
  "hang": ("hung", "no answer within 2 s, in the warm-up steps"),
  "memory": ("out_of_memory", ""),
}


class Bench:
  """Two workers, and the faulty step on them."""

  def __init__(self, workers: WorkerCluster, step: Step):
    self.workers, self.step = workers, step
    steps = {"warmup": 1, "steps": 2, "traced_steps": 0}
    self.patient, self.impatient = (
      harness_of(
        *(workers, step), timeout_s=limit, allow_side_effects=True, **steps
      )
      for limit in (60.0, HANGS_AFTER_S)
    )

  def measure(self, fault):
    """One measurement of a placement with the fault, or with none."""
    # Killed is a placement that would hang: then it surely is in a step.
    cause = {"kill": "hang"}.get(fault, fault)
    row = self.step.on({f"on_{cause}": 1} if cause else {"out": 1})
    if fault == "hang":
      return self.impatient.evaluate(row)[0]
    if fault != "kill":
      return self.patient.evaluate(row)[0]
    killer = threading.Thread(target=self._kill_in_a_step, daemon=True)
    killer.start()
    evaluation = self.patient.evaluate(row)[0]
    killer.join()
    return evaluation

  def _kill_in_a_step(self):
    while self.workers.stage != "the warm-up steps":
      time.sleep(0.01)
    time.sleep(0.1)
    os.kill(self.workers.pids[1], signal.SIGKILL)


def children():
  """Process ids whose parent this process is, zombies too."""
  found = set()
  for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      fields = entry.read_text("ascii", "ignore").rpartition(")")[2].split()
      if int(fields[1]) == os.getpid():
        found.add(int(entry.parent.name))
  return found


def listening(pids=None):
  """Ports with a listener, of these processes only if they are given."""
  inodes = set()
  for pid in pids or ():
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
      with contextlib.suppress(OSError):
        inodes.add(os.readlink(link))
  found = set()
  for table in ("tcp", "tcp6"):
    path = pathlib.Path(f"/proc/net/{table}")
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    for fields in map(str.split, lines):
      is_listening = fields[3] == "0A"
      if is_listening and (pids is None or f"socket:[{fields[9]}]" in inodes):
        found.add(int(fields[1].rpartition(":")[2], 16))
  return found


def test_every_second_fault_costs_no_other_measurement(monkeypatch, tmp_path):
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  monkeypatch.setattr(tempfile, "tempdir", None)
  plan = np.random.default_rng(0).permutation([*TOLD, *[""] * 4]).tolist()
  children_before, files_before = children(), len(os.listdir("/proc/self/fd"))
  ports = set()
  with WorkerCluster(2) as workers:
    bench = Bench(workers, faulty_step())
    for fault in plan:
      evaluation = bench.measure(fault)
      kind, words = TOLD.get(fault, (None, ""))
      assert evaluation.extra.get("error_kind") == kind, (fault, evaluation)
      assert words in evaluation.extra.get("error", "")
      assert math.isinf(evaluation.step_time_us) == bool(fault)
      assert evaluation.feasible == (not fault)
      if not fault:
        assert evaluation.extra["fetches"] == {"out:0": 2.0}
      assert len(children() - children_before) in (0, 2)
      ports |= listening(workers.pids)
  assert len(ports) >= 2  # each worker served on one
  assert not ports & listening()
  assert children() == children_before
  assert list(tmp_path.iterdir()) == []
  assert len(os.listdir("/proc/self/fd")) == files_before


def test_a_process_that_does_not_restart_is_no_placements_fault(
  trained, monkeypatch
):
  monkeypatch.setattr(runtime, "STARTUP_TIMEOUT_S", 0.01)
  workers = WorkerCluster(1)
  harness = harness_of(workers, trained)
  failed = harness.evaluate(trained.on({}))[0]
  assert failed.extra["error_kind"] == "not_started"
  assert "the placement was not run: starting worker 0" in failed.extra["error"]
  assert workers.pids == ()


def test_children_leave_no_core_file_and_lack_memory_first(workers):
  workers.start()
  for pid in workers.pids:
    assert os.getpgid(pid) == pid  # Its group ends with it.
    limits = pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()
    core = next(line for line in limits if line.startswith("Max core"))
    assert core.split()[4] == "0"
    score = pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text()
    assert int(score) == 1000
