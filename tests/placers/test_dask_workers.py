"""Searches on Dask workers: safety, lost workers, errors, cancellation."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import distributed
import numpy as np
import psutil
import pytest

import tfplace
from tests.testing.dask_workers import two_workers
from tests.testing.slow import SLOW_TESTS
from tests.testing.train_commands import environment
from tfplace import placers
from tfplace.core import Problem
from tfplace.core.order import ORDERS
from tfplace.errors import TfplaceError
from tfplace.placers import dask_workers
from tfplace.placers.dask_workers import opened_workers
from tfplace.simulate import Simulator

slow = pytest.mark.skipif(not SLOW_TESTS, reason="TFPLACE_SLOW_TESTS is unset")


@pytest.fixture(scope="module")
def cluster():
  with two_workers() as (address, client):
    yield address, client


@pytest.fixture(scope="module")
def problem():
  return Problem(hard_graph(200), tfplace.cluster_preset("p100x4"))


@pytest.mark.parametrize("order", [*ORDERS, "auto"])
def test_result_is_the_best_of_the_seeds(cluster, problem, order):
  """One worker searches as this process does, the other with the next seed."""
  options = {"max_evaluations": 2000, "order": order}
  found = placers.place(problem, dask=cluster[0], seed=5, **options)
  here = [placers.place(problem, seed=seed, **options) for seed in (5, 6)]
  best = min(here, key=lambda result: result.evaluation.step_time_us)
  assert (found.placement.devices == best.placement.devices).all()
  assert found.evaluation == best.evaluation
  assert found.strategy == "auto"
  for name in ("order", "other_order_us", "evaluations", "skipped"):
    assert getattr(found, name) == getattr(best, name)
  assert [r.strategy for r in found.tried] == [r.strategy for r in best.tried]


def test_classical_placer_runs_here(problem):
  """No cluster is asked, so None is enough."""
  options = {"strategy": "metis", "budget_s": 5.0}
  found = dask_workers.place_on_workers(problem, None, None, **options)
  expected = placers.place(problem, "metis")
  assert (found.placement.devices == expected.placement.devices).all()


# Answers of workers that err, to be simulated or refused.


def swear_wrong_device(content, seed):
  return "arrival", [("auto", np.full(200, 99), 1.0, 1)], {}, None


def swear_nonsense(content, seed):
  return {"step_time_us": 1.0}


def fail(content, seed):
  raise ValueError("no memory on this worker")


@pytest.mark.parametrize("answer", [swear_wrong_device, swear_nonsense, fail])
def test_wrong_answers_are_refused(
  cluster, problem, answer, monkeypatch, caplog
):
  monkeypatch.setattr(dask_workers, "_search", answer)
  found = placers.place(problem, dask=cluster[0], max_evaluations=500)
  expected = placers.place(problem, max_evaluations=500)
  assert found.evaluation == expected.evaluation
  assert caplog.text.count("a task on the Dask workers is lost") == 2
  assert "no Dask worker returned a placement" in caplog.text


def one_device(content, seed):
  return "arrival", [("auto", np.zeros(200, np.int32), 1e-3, 1)], {}, None


def test_answers_are_simulated_here(cluster, problem, monkeypatch):
  monkeypatch.setattr(dask_workers, "_search", one_device)
  found = placers.place(problem, dask=cluster[0], max_evaluations=500)
  rows = np.zeros((1, 200), np.int32)
  assert [found.evaluation] == Simulator(problem).evaluate(rows)


# Lost workers.


def placed_on(problem, opened, **options):
  defaults = {
    "strategy": "auto",
    "seed": 0,
    "policy": None,
    "max_evaluations": None,
    "init_placement": None,
    "tolerance": 0.0,
    "order": "arrival",
    "gap": 0.0,
  }
  return dask_workers.place_on_workers(
    problem, opened, None, **{**defaults, **options}
  )


@slow
def test_rules_and_search_run_here_without_any_worker(problem, caplog):
  with (
    two_workers(restarts=False) as (address, client),
    opened_workers(address, "auto") as opened,
  ):
    pids = client.run(os.getpid).values()
    killer = threading.Timer(2.0, lambda: [os.kill(p, 9) for p in pids])
    killer.start()
    began = time.monotonic()
    found = placed_on(problem, opened, budget_s=4.0)
    took_s = time.monotonic() - began
    killer.join()
  assert "runs here" in caplog.text
  # The rest of the budget is more than the quarter that is always left.
  assert took_s < 4.0 + 6.0
  ran = {result.strategy for result in found.tried}
  assert {"blocks", "annealing"} <= ran
  assert len(set(found.placement.devices.tolist())) > 1
  assert found.evaluation.step_time_us == min(
    result.evaluation.step_time_us for result in found.tried
  )


# Local workers.


def listening(process):
  """Addresses on which a process and its children accept connections."""
  return [
    connection.laddr
    for each in [process, *process.children(recursive=True)]
    for connection in each.net_connections("inet")
    if connection.status == psutil.CONN_LISTEN
  ]


def test_local_workers_are_closed_to_others():
  """Loopback only, no HTTP port, and nobody without the key gets in."""
  before = set(listening(psutil.Process()))
  with opened_workers("local") as opened:
    ports = set(listening(psutil.Process())) - before
    assert {port.ip for port in ports} == {"127.0.0.1"}
    assert len(ports) == 1 + len(opened.addresses)
    for security in (
      distributed.Security.temporary(),
      distributed.Security(require_encryption=False),
    ):
      for port in ports:
        name = "tls" if security.require_encryption else "tcp"
        with pytest.raises((OSError, TimeoutError, RuntimeError)):
          distributed.Client(
            f"{name}://127.0.0.1:{port.port}",
            **{"timeout": 1.0, "set_as_default": False, "security": security},
          )
  wait_for(lambda: not set(listening(psutil.Process())) - before)


HOLDER = """
import sys
from tfplace.placers.dask_workers import opened_workers

with opened_workers("local"):
  print("open", flush=True)
  sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGHUP"])
def test_local_workers_end_with_a_killed_parent(name):
  holder = subprocess.Popen(
    [sys.executable, "-c", HOLDER],
    env=environment(),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    # A parent such as nohup may ignore it.
    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
  )
  assert holder.stdout.readline() == "open\n"
  children = psutil.Process(holder.pid).children(recursive=True)
  assert any("dask_workers" in str(child.cmdline()) for child in children)
  holder.send_signal(getattr(signal, name))
  assert not psutil.wait_procs(children, timeout=10)[1]
  holder.communicate()


# Addresses.


@pytest.mark.parametrize(
  "dask, said",
  [
    ("", "dask is ''; it must be the address"),
    (7, "dask is 7; it must be the address"),
    ("tcp://127.0.0.1:1", "no Dask worker is ready at dask='tcp://127"),
    ("nonsense", "no Dask worker is ready at dask='nonsense'"),
  ],
)
def test_invalid_addresses_are_named(problem, dask, said, monkeypatch):
  monkeypatch.setattr(dask_workers, "_ANSWER_S", 1.0)
  with pytest.raises(TfplaceError, match=said):
    placers.place(problem, dask=dask)


def answer_nothing(stack):
  server = stack.enter_context(socket.socket())
  server.bind(("127.0.0.1", 0))
  server.listen()
  return server.getsockname()[1]


def answer_bytes(content):
  """Server that sends `content` to everyone and keeps the connection."""

  def start(stack):
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def serve():
      with contextlib.suppress(OSError):
        while True:
          connection, _ = server.accept()
          stack.enter_context(connection).sendall(content)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]

  return start


HALF = """
import asyncio, distributed, sys

async def serve():
  async def hang(*_, **__):
    await asyncio.sleep(1000)
  handlers = {"identity": lambda *_, **__: {"workers": {}, "type": "Scheduler"}}
  if sys.argv[1] == "lie":
    handlers = {"identity": lambda *_, **__: {"workers": 7}}
  handlers["register-client"] = hang
  server = distributed.core.Server(handlers)
  await server.listen("tcp://127.0.0.1:0")
  print(server.port, flush=True)
  await hang()

asyncio.run(serve())
"""


def answer_half(how):
  """Scheduler that tells about itself and then never answers a client."""

  def start(stack):
    process = subprocess.Popen(
      [sys.executable, "-c", HALF, how], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return int(process.stdout.readline())

  return start


@pytest.mark.parametrize(
  "start",
  [
    pytest.param(answer_nothing, id="silent"),
    pytest.param(answer_bytes(bytes(7) + b"\x7f" * 9), id="sizes"),
    pytest.param(answer_half("hang"), id="half"),
    pytest.param(answer_half("lie"), id="lie"),
  ],
)
def test_other_servers_are_an_error_within_ten_seconds(start):
  with contextlib.ExitStack() as stack:
    address = f"tcp://127.0.0.1:{start(stack)}"
    began = time.monotonic()
    with (
      pytest.raises(TfplaceError, match="no Dask worker is ready") as raised,
      opened_workers(address),
    ):
      pass
    assert time.monotonic() - began < 10.0
  assert address in str(raised.value)
  assert "`dask scheduler`" in str(raised.value)


def test_port_of_a_worker_is_no_scheduler(cluster):
  (address, *_) = cluster[1].scheduler_info(n_workers=-1)["workers"]
  with (
    pytest.raises(TfplaceError, match="no Dask worker is ready"),
    opened_workers(address),
  ):
    pass


@pytest.mark.parametrize("package", ["distributed", "cryptography"])
def test_missing_packages_are_named(problem, monkeypatch, package):
  monkeypatch.setattr(
    dask_workers.util, "find_spec", lambda name: name != package or None
  )
  with pytest.raises(TfplaceError, match=rf"{package}.* 'tfplace\[dask\]'"):
    placers.place(problem, dask="local")


# Versions.


def test_workers_with_another_version_are_named(cluster, monkeypatch):
  monkeypatch.setattr(tfplace, "__version__", "99.0")
  with (
    pytest.raises(TfplaceError, match=r"it has tfplace .*, not 99\.0"),
    opened_workers(cluster[0]),
  ):
    pass


def hard_graph(num_ops):
  """Random ops and edges, whose search never proves an optimum."""
  rng = np.random.default_rng(0)
  ops = [
    tfplace.OpSpec(
      f"o{i}", "MatMul", {"GPU": t, "CPU": 9 * t}, [float(t) * 1e5]
    )
    for i, t in enumerate(rng.uniform(1, 90, num_ops))
  ]
  edges = sorted(
    {
      (int(rng.integers(max(0, i - 50), i)), 0, i)
      for i in range(1, num_ops)
      for _ in range(3)
    }
  )
  return tfplace.build_graph("hard", ops, edges)


def wait_for(is_so, patience_s=60.0):
  deadline = time.monotonic() + patience_s
  while not is_so():
    assert time.monotonic() < deadline, "it took too long"
    time.sleep(0.05)
