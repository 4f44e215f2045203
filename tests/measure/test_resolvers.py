"""Cluster resolvers: workers, the own one, and what broken variables say."""

import json

import pytest

from tests.testing import task_commands
from tfplace.errors import MeasurementError
from tfplace.measure.local import host
from tfplace.measure.remote import resolvers, tasks, workers

AB = ["a:1", "b:2"]
FIRST = {"type": "worker", "index": 0}


def set_tf_config(monkeypatch, value):
  text = value if isinstance(value, str) else json.dumps(value)
  monkeypatch.setenv("TF_CONFIG", text)


def set_slurm(monkeypatch, **variables):
  for name, value in (task_commands.slurm(0, 2) | variables).items():
    monkeypatch.setenv(name, value)


def addresses(task):
  return [worker.address for worker in task.hosts.workers]


@pytest.mark.parametrize(
  ("cluster", "task", "found", "index"),
  [
    ({"worker": AB}, {"type": "worker", "index": 1}, AB, 1),
    ({"worker": AB}, None, AB, None),
    ({"worker": AB}, {"type": "chief", "index": 0}, AB, None),
    # A chief of the cluster is its first worker.
    ({"worker": AB, "chief": ["c:3"]}, FIRST, ["c:3", *AB], 1),
    ({"worker": AB, "chief": ["c:3"]}, {"type": "chief", "index": 0}, None, 0),
  ],
)
def test_tf_config_gives_workers_and_the_own_one(
  monkeypatch, cluster, task, found, index
):
  set_tf_config(
    monkeypatch, {"cluster": cluster} | ({"task": task} if task else {})
  )
  task = resolvers.resolve("tf_config")
  assert addresses(task) == (found or ["c:3", *AB])
  assert task.index == index


@pytest.mark.parametrize(
  ("value", "said"),
  [
    ("", "TF_CONFIG is empty"),
    ("3", "TF_CONFIG='3': "),
    ({"cluster": {"worker": []}}, "has 0 workers"),
    ({"cluster": {"worker": AB, "ps": ["c:3"]}}, "'ps' is neither"),
    ({"cluster": {"worker": AB}, "task": {"type": "evaluator"}}, "'evaluator'"),
    ({"cluster": {"worker": AB}, "task": {"type": "worker"}}, "index None"),
    (
      {"cluster": {"worker": AB}, "task": {"type": "worker", "index": 2}},
      "task 'worker' has index 2, and the cluster has 2 of its type",
    ),
    ({"cluster": {"worker": AB}, "task": 5}, "int"),
  ],
)
def test_broken_tf_config_is_named(monkeypatch, value, said):
  set_tf_config(monkeypatch, value)
  with pytest.raises(MeasurementError) as info:
    resolvers.resolve("tf_config")
  text = str(info.value)
  assert said in text
  assert text.startswith("TF_CONFIG")
  assert '"cluster": {"worker": ' in text  # the way out
  assert "\n" not in text


def test_slurm_tasks_of_a_node_have_consecutive_ports(monkeypatch):
  set_slurm(monkeypatch, SLURM_PROCID="1", SLURM_LOCALID="1")
  task = resolvers.resolve("slurm")
  assert addresses(task) == ["127.0.0.1:8888", "127.0.0.1:8889"]
  assert task.index == 1
  assert addresses(resolvers.resolve("slurm:30000"))[1] == "127.0.0.1:30001"


def test_slurm_task_finds_its_node_in_any_order(monkeypatch):
  # TensorFlow sorts by name, so the first task's n9 is its second worker.
  set_slurm(
    monkeypatch,
    SLURM_STEP_NODELIST="n[9-10]",
    SLURM_STEP_TASKS_PER_NODE="1(x2)",
    SLURMD_NODENAME="n9",
  )
  task = resolvers.resolve("slurm")
  assert addresses(task) == ["n10:8888", "n9:8888"]
  assert task.worker.address == "n9:8888"
  monkeypatch.delenv("SLURMD_NODENAME")
  assert resolvers.resolve("slurm").index == 0  # as TensorFlow says


@pytest.mark.parametrize(
  ("variables", "said"),
  [
    ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
    ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST='n[1-'"),
    ({"SLURM_STEP_TASKS_PER_NODE": "2x"}, 'tasks-per-node list format "2x"'),
    ({"SLURM_STEP_NUM_TASKS": "3"}, "SLURM_STEP_NUM_TASKS='3'"),
    ({"SLURM_PROCID": "2", "SLURMD_NODENAME": "m"}, "is no index of a task"),
  ],
)
def test_broken_slurm_variables_are_named(monkeypatch, variables, said):
  set_slurm(monkeypatch, **variables)
  with pytest.raises(MeasurementError) as info:
    resolvers.resolve("slurm")
  assert said in str(info.value)
  assert "srun" in str(info.value)


@pytest.mark.parametrize(
  "name", ["tf_config:1", "slurm:", "slurm:x", "slurm:65536"]
)
def test_bad_options_of_resolvers_are_named(monkeypatch, name):
  set_slurm(monkeypatch)
  with pytest.raises(MeasurementError, match=name):
    resolvers.resolve(name)


def test_own_name_of_loopback_is_refused_beside_other_hosts(monkeypatch):
  resolve = host.resolve
  monkeypatch.setattr(
    host, "resolve", lambda name: resolve({"n1": "127.0.1.1"}.get(name, name))
  )
  found = [workers.Worker(a) for a in ("n1:1", "10.0.0.2:1")]
  task = resolvers.Task(workers.Hosts("slurm", tuple(found)), 0)
  with pytest.raises(MeasurementError, match=r"127\.0\.1\.1 here.*/etc/hosts"):
    tasks.check_reachable(task)
  own = resolvers.Task(workers.Hosts("slurm", tuple(found[:1])), 0)
  tasks.check_reachable(own)  # alone, it needs nobody
