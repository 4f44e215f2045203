"""Several workers of tfplace-worker: measured on, lost, and found again."""

import contextlib
import os
import signal
import socket

import pytest

from tests.testing.harnesses import harness_of, when_stepping
from tests.testing.patience import patiently
from tests.testing.served_workers import serving, write_hosts
from tests.testing.slow import SLOW
from tests.testing.traced_steps import run_steps
from tfplace.errors import MeasurementError
from tfplace.extraction.traced import feed_values
from tfplace.measure.cluster import open_cluster
from tfplace.measure.local import host
from tfplace.measure.remote import workers
from tfplace.measure.remote.hosts import HostCluster, handshake
from tfplace.measure.remote.workers import Handshake, read_handshake
from tfplace.measure.session import messages, session

CPU_0, CPU_1 = (f"/job:worker/replica:0/task:{t}/device:CPU:0" for t in (0, 1))


@pytest.fixture(scope="module")
def served():
  with serving(("127.0.0.1:0", "127.0.0.1:0")) as workers:
    yield workers


@pytest.fixture(scope="module")
def path(served, tmp_path_factory):
  addresses = {"a": served[0].address, "b": served[1].address}
  return write_hosts(
    tmp_path_factory.mktemp("hosts") / "h.json", addresses, b="old"
  )


@pytest.fixture(scope="module")
def live(path):
  with open_cluster(path) as cluster:
    yield cluster


@pytest.fixture(scope="module")
def hosts(live):
  return live.runtime


def in_steps(hosts, step, then):
  """Calls `then` when the timed steps of the next placement have begun."""
  # Before the first placement an empty step is timed: have that done.
  harness_of(hosts, step, steps=1).evaluate(step.on({}))
  when_stepping(hosts, then)


def test_workers_are_devices_with_measured_links(live):
  cluster = live.cluster
  assert cluster.name == "lab"
  assert [(d.name, d.kind) for d in cluster.devices] == [
    (CPU_0, "CPU"),
    (CPU_1, "CPU-old"),
  ]
  # The two share a host, and so its memory.
  for device in cluster.devices:
    half = host.memory_bytes() / 2
    assert device.memory_bytes == pytest.approx(half, abs=2**20)
  assert [(link.src, link.dst) for link in cluster.links] == [
    (CPU_0, CPU_1),
    (CPU_1, CPU_0),
  ]
  measured = patiently(live.runtime.measured_links, are_of_one_host)
  assert are_of_one_host(measured), measured


def are_of_one_host(links):
  # The fit says what of a byte's time is the devices', what the link's.
  return all(
    1e-6 < _us_per_byte(link) < 1 and 0 <= link.latency_us < 1e5
    for link in links
  )


def _us_per_byte(link):
  own = link.send_us_per_byte + link.recv_us_per_byte
  return 1 / link.bandwidth_bytes_per_us + own


def test_split_step_computes_the_losses_of_a_local_session(hosts, trained):
  feed = feed_values(trained.traced)
  # The first step is fetched; then 1 warm-up, 2 timed, 1 traced, 1 fetched.
  local = run_steps(trained.traced, [feed] * 6)
  harness = harness_of(hosts, trained, warmup=1, steps=2, traced_steps=1)
  evaluation = harness.evaluate(trained.on({"y": 1, "grad": 1}))[0]
  for key, step in (("fetches", 0), ("last_fetches", 5)):
    loss = evaluation.extra[key]["loss:0"]
    assert loss == pytest.approx(local[step][0], rel=1e-6)
  ran = {name: op.device for name, op in harness.traces[0].ops.items()}
  assert {name for name, d in ran.items() if d == CPU_1} == {"y", "grad"}


@SLOW
def test_killed_worker_is_named_and_its_successor_measured_on(
  served, hosts, trained
):
  harness = harness_of(hosts, trained, steps=10**7, timeout_s=60)
  server = served[1].server_pid()
  in_steps(hosts, trained, lambda: os.kill(server, signal.SIGKILL))
  failed = harness.evaluate(trained.on({"y": 1}))[0]
  assert failed.extra["error_kind"] == "died", failed.extra
  # "cannot be reached", or "was lost" where it was up again that fast.
  named = f"worker 'b' at {served[1].address} "
  assert failed.extra["error"].startswith(named)
  again = harness_of(hosts, trained, steps=2)
  assert again.evaluate(trained.on({"y": 1}))[0].feasible
  assert served[1].await_address() in named  # the same port
  assert served[1].server_pid() != server


@contextlib.contextmanager
def server_of_job(job):
  """A TensorFlow server in this process, on loopback; its address."""
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  address = f"127.0.0.1:{port}"
  config = messages.ChildConfig(addresses=[address], job=job)
  server = session.make_server(config, session.session_config(config))
  host.keep_on_loopback(port)
  server.start()
  yield address
  del server


def refusal(tmp_path, address, served):
  """Returns the error for a bad worker beside a good one."""
  hosts = write_hosts(
    tmp_path / "h.json", {"a": served[0].address, "x": address}
  )
  with (
    pytest.raises(MeasurementError) as info,
    HostCluster(workers.load_hosts(hosts)),
  ):
    pass
  return str(info.value)


def test_two_addresses_of_one_worker_are_refused(tmp_path, served):
  port = served[0].port
  addresses = {"x": f"127.0.0.1:{port}", "y": f"localhost:{port}"}
  path = write_hosts(tmp_path / "h.json", addresses)
  with (
    pytest.raises(
      MeasurementError, match=r"'x' at .* and worker 'y' at .* are"
    ),
    HostCluster(workers.load_hosts(path)),
  ):
    pass


def test_a_worker_of_another_tensorflow_is_refused(tmp_path, served):
  with server_of_job(Handshake("2.20.0", 2**30).job) as address:
    said = refusal(tmp_path, address, served)
  assert said.startswith(f"worker 'x' at {address} runs TensorFlow 2.20.0, and")


def test_a_server_of_somebody_else_is_refused():
  with server_of_job("worker") as address:
    answer = session.answer(address)
    worker = workers.Worker(address, "x")
    with pytest.raises(MeasurementError) as info:
      handshake(worker, answer)
  assert f"worker 'x' at {address}" in str(info.value)
  assert "tfplace-worker did not start" in str(info.value)


@pytest.mark.parametrize("version", ["2.21.0", "2.21.0-rc1", "2.22.0.dev3"])
def test_a_handshake_reads_back(version):
  says = Handshake(version, 3 * 2**30)
  found = read_handshake([f"/job:{says.job}/replica:0/task:0/device:CPU:0"])
  assert found.has_version(version)
  assert not found.has_version("2.21.1")
  assert found.memory_bytes == 3 * 2**30
