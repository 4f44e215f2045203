"""Tasks of one cluster that start the same command, and their ends."""

import json
import socket
import threading

import pytest
import tensorflow as tf

from tests.testing import task_commands
from tests.testing.clusters import linked
from tests.testing.served_workers import Served
from tests.testing.slow import SLOW
from tfplace import cost, formats
from tfplace.bin import worker
from tfplace.errors import MeasurementError
from tfplace.extraction.graph_def import trace_graph_def
from tfplace.graph.cluster import Device
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure.remote import tasks, workers


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
  """Flags of `tfplace-measure` for a step with an op on each of two workers."""
  folder = tmp_path_factory.mktemp("step")
  graph = tf.Graph()
  with graph.as_default():
    square = tf.random.normal((32, 32), name="square")
    tf.reduce_mean(tf.matmul(square, square, name="product"), name="mean")
  model = folder / "step.pb"
  model.write_bytes(graph.as_graph_def().SerializeToString())
  names = [f"/job:worker/replica:0/task:{t}/device:CPU:0" for t in (0, 1)]
  cluster = linked([Device(n, "CPU", 2.0**30) for n in names], 1e3, 1.0)
  problem = Problem(
    cost.op_graph(trace_graph_def(str(model)), cluster), cluster
  )
  on = [int(name == "product") for name in problem.graph.names]
  formats.save_placement(Placement(problem, on), folder / "p.json")
  return [f"--graph_def={model}", f"--placement={folder / 'p.json'}"]


def check_measured_once(processes, output):
  """Both tasks ended well, and the first one wrote the only result."""
  (code, out, errors), (other_code, other_out, other_errors) = (
    task_commands.ends(processes)
  )
  assert (code, other_code) == (0, 0), errors + other_errors
  assert out.count("measured step time: ") == 1
  assert other_out == ""
  assert "worker 0 of 2" in errors
  assert "worker 1 of 2" in other_errors
  evaluation = json.loads(output.read_text())
  assert evaluation["source"] == "measured"
  assert 0 < evaluation["step_time_us"] < float("inf")


@SLOW
def test_two_tasks_of_tf_config_measure_once(arguments, tmp_path):
  port = task_commands.free_ports(2)
  addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
  environments = [
    task_commands.tf_config(addresses, {"type": "worker", "index": i})
    for i in (0, 1)
  ]
  output = tmp_path / "e.json"
  flags = [*arguments, "--cluster=tf_config", f"--output={output}"]
  with task_commands.started("measure", flags, environments) as processes:
    check_measured_once(processes, output)


def hosts_of(*ports):
  found = [workers.Worker(f"127.0.0.1:{p}") for p in ports]
  return workers.Hosts("lab", tuple(found))


def test_the_end_of_the_first_task_ends_the_others(monkeypatch):
  monkeypatch.setattr(tasks, "_GONE_S", 1.0)
  served = Served("127.0.0.1:0")
  try:
    address = served.await_address()
    first = workers.Worker(address)
    killer = threading.Timer(1.0, served.process.kill)
    killer.start()
    tasks.await_end(first)
    assert served.process.poll() is not None
  finally:
    served.process.kill()
    served.process.communicate()


def test_missing_first_task_is_not_awaited_for_ever(monkeypatch):
  monkeypatch.setattr(tasks, "START_S", 0.5)
  with socket.socket() as bound:  # It does not listen.
    bound.bind(("127.0.0.1", 0))
    (first,) = hosts_of(bound.getsockname()[1]).workers
    with pytest.raises(MeasurementError, match="no sign of the first task"):
      tasks.await_end(first)


def test_worker_refuses_bind_beside_a_cluster(capsys):
  assert worker.run(["--bind=127.0.0.1:1", "--cluster=slurm"]) == 1
  assert "both give the address" in capsys.readouterr().err


def test_worker_needs_a_task_of_its_own(capsys, monkeypatch):
  variables = task_commands.tf_config(["127.0.0.1:1"], None)
  monkeypatch.setenv("TF_CONFIG", variables["TF_CONFIG"])
  assert worker.run(["--cluster=tf_config"]) == 1
  assert "TF_CONFIG names no task" in capsys.readouterr().err
