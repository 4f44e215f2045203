"""Worker processes: started, measured on, and never left behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.testing.patience import patiently
from tests.testing.slow import SLOW
from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure import placed_step
from tfplace.measure.local.devices import WorkerCluster
from tfplace.measure.local.runtime import ChildError

_PARENT = """
import time
from tfplace.measure.local.devices import WorkerCluster
with WorkerCluster(2) as workers:
  print(*workers.pids, flush=True)
  time.sleep(600)
"""


def wait_until_gone(pids, timeout_s=8.0):
  """The pids that are still alive (zombies are not) after at most so long."""
  deadline = time.monotonic() + timeout_s
  while True:
    left = [pid for pid in pids if _alive(pid)]
    if not left or time.monotonic() > deadline:
      return left
    time.sleep(0.05)


def _alive(pid):
  try:
    return _state(pathlib.Path(f"/proc/{pid}")) != "Z"
  except OSError:
    return False


def _state(folder):
  """State of a process or thread: "T" is stopped, "Z" a zombie."""
  return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def stop(pid, timeout_s=8.0):
  """Stops a process and waits until its last thread has stopped."""
  os.kill(pid, signal.SIGSTOP)
  deadline = time.monotonic() + timeout_s
  threads = pathlib.Path(f"/proc/{pid}/task")
  while any(_state(thread) != "T" for thread in threads.iterdir()):
    assert time.monotonic() < deadline, "it does not stop"
    time.sleep(0.01)


def is_loopback(cluster):
  # Messages take microseconds to milliseconds of both processes, and their
  # bytes are copied, at 10 MB/s to 1 TB/s.
  return all(
    0 < link.send_us < 1e4
    and 0 < link.recv_us < 1e4
    and 1e-6 < link.send_us_per_byte + link.recv_us_per_byte < 0.1
    and 0 <= link.latency_us < 1e5
    for link in cluster.links
  )


def test_workers_are_cpu_devices_with_measured_links(workers):
  cluster = patiently(workers.cluster, is_loopback)
  assert is_loopback(cluster), cluster.links
  assert [device.name for device in cluster.devices] == [
    "/job:worker/replica:0/task:0/device:CPU:0",
    "/job:worker/replica:0/task:1/device:CPU:0",
  ]
  assert {device.kind for device in cluster.devices} == {"CPU"}
  assert len(cluster.links) == 2


def test_workers_are_gone_after_an_interrupt_in_a_step(trained):
  def interrupt(signum, frame):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGALRM, interrupt)
  try:
    with pytest.raises(KeyboardInterrupt), WorkerCluster(1) as workers:
      pids = workers.pids
      assert len(pids) == 1
      device = Device(workers.device_names[0], "CPU")
      problem = Problem(trained.graph, Cluster("one", (device,)))
      row = Placement(problem, np.zeros(trained.graph.num_ops, np.int32))
      request = placed_step.step_request(
        trained.traced,
        row,
        warmup=0,
        steps=10**7,
        traced_steps=0,
        phase_s=60.0,
      )
      signal.setitimer(signal.ITIMER_REAL, 1.0)
      workers.run(request, 60.0)
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
  assert wait_until_gone(pids) == []
  with pytest.raises(MeasurementError, match="closed"):
    workers.start()


def test_worker_that_cannot_start_is_told_with_its_log(monkeypatch, tmp_path):
  broken = tmp_path / "python"
  broken.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
  broken.chmod(0o755)
  monkeypatch.setattr(sys, "executable", str(broken))
  with pytest.raises(ChildError, match=r"code 3.*no such library"):
    WorkerCluster(1).start()


@SLOW
def test_workers_die_with_a_killed_parent_even_when_stopped():
  parent = subprocess.Popen(
    [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True
  )
  try:
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert wait_until_gone(pids, 0.0) == pids
    stop(pids[1])  # one that stops only after its parent is gone stays
    parent.kill()
    parent.wait()
    assert wait_until_gone(pids) == []
  finally:
    parent.kill()
    parent.stdout.close()
