"""Devices of workers on several machines, started by tfplace commands.

Sessions run on the first worker; the time of the request is not counted.
"""

import contextlib
import dataclasses
import itertools
import operator
import time
from collections.abc import Sequence
from importlib import metadata

from tfplace.cost import grappler
from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.progress import Progress, silent
from tfplace.measure.calibrate import links
from tfplace.measure.local import host, runtime
from tfplace.measure.remote import workers
from tfplace.measure.session import messages

_RETURN_S = 60.0  # for a dead worker to restart
_EMPTY_STEPS = 30
_KINDS = ("CPU", "GPU")


class HostCluster(runtime.Runtime):
  """Devices of existing workers, for one harness at a time.

  This process only starts and ends the process that holds the session. A dead
  worker is waited for, because tfplace-worker restarts it.

  Args:
    hosts: the workers; they must reach each other by the same addresses.
    wait_s: seconds in which the workers may still start.
  """

  def __init__(self, hosts: workers.Hosts, wait_s: float = 0.0) -> None:
    super().__init__()
    self._hosts = hosts
    self._devices: dict[str, float] = {}  # name -> memory
    self._worker_of: dict[str, workers.Worker] = {}
    self._incarnations: list[int] = []  # by worker
    self._back_by = time.monotonic() + wait_s
    self._empty_us: dict[str, float] = {}  # of a step, by device

  @property
  def device_names(self) -> tuple[str, ...]:
    """Lists the devices by worker, GPUs first; empty before the start."""
    return tuple(self._devices)

  def _spawn(self) -> None:
    asked = self._hosts.workers
    problems = workers.check_until(asked, self._back_by)
    if problems:
      raise runtime.ChildError("died", "; ".join(problems))
    config = messages.ChildConfig(remote=[worker.address for worker in asked])
    self._children.append(runtime.Child("session", config))
    self._await_ready()
    self._empty_us = {}
    (ready,) = self._ready
    self._register(ready.answers)

  def _register(self, answers: Sequence[messages.Answer]) -> None:
    pairs = list(zip(self._hosts.workers, answers, strict=True))
    for (one, a), (other, b) in itertools.combinations(pairs, 2):
      if not a.error and a.incarnation == b.incarnation:
        raise MeasurementError(f"{one} and {other} are the same: name it once")
    devices: dict[str, float] = {}
    hosts = [worker.host for worker in self._hosts.workers]
    for task, (worker, answer) in enumerate(pairs):
      memory = handshake(worker, answer).memory_bytes
      memory /= hosts.count(worker.host)
      for listed in sorted(answer.devices, key=host.gpus_first):
        kind, number = host.kind_and_number(listed)
        if kind in _KINDS:
          name = f"/job:worker/replica:0/task:{task}/device:{kind}:{number}"
          of_gpu = answer.devices[listed]
          devices[name] = of_gpu if kind == "GPU" else memory
          self._worker_of[name] = worker
    self._devices = devices
    self._incarnations = [answer.incarnation for answer in answers]
    # A GPU's streams execute in their own order.
    self.runs_in_order = not any(":GPU:" in name for name in devices)

  def run(
    self,
    request: messages.StepRequest,
    timeout_s: float,
    on_stage: Progress = silent,
  ) -> messages.StepReply:
    """Runs the steps; `step_us` excludes the round trip of the request.

    Errors name the workers that are gone; see `Runtime.run`.
    """
    self.start()  # fails at once if a lost worker is still gone
    try:
      if workers.check(self._hosts.workers):  # A session would wait for them.
        self.stop()
        raise runtime.ChildError("died", "no session was opened")
      request_us = self._request_us()
      reply = super().run(request, timeout_s, on_stage)
      if min(reply.step_us) <= request_us:  # timed while the host was busy
        self._empty_us = {}
        request_us = self._request_us()
    except runtime.ChildError as error:
      self._back_by = time.monotonic() + _RETURN_S
      problems = workers.check(self._hosts.workers) or self._lost(error)
      if not problems:
        raise
      raise runtime.ChildError(
        "hung" if error.kind == "hung" else "died",
        f"{'; '.join(problems)}; {error}",
      ) from error
    step_us = [max(us - request_us, 0.0) for us in reply.step_us]
    return dataclasses.replace(reply, step_us=step_us)

  def _lost(self, error: runtime.ChildError) -> list[str]:
    """Names workers that died and answer again as new processes.

    TensorFlow's error may name the other end of the broken connection.
    """
    if error.kind != "lost":
      return []
    before = self._incarnations
    with contextlib.suppress(MeasurementError):
      self.start()  # as the next measurement would
    changed = map(operator.ne, before, self._incarnations)
    lost = itertools.compress(self._hosts.workers, changed)
    return [f"{worker} was lost" for worker in lost]

  def _request_us(self) -> float:
    """Returns the time of the request for a step and of its answer."""
    cpu = next(n for n in self._devices if host.kind_of(n) == "CPU")
    return self._empty_step_us(cpu)

  def starting_us(self, device: str) -> float:
    """Returns the time the first worker needs to start a step on a device."""
    return max(self._empty_step_us(device) - self._request_us(), 0.0)

  def _empty_step_us(self, device: str) -> float:
    self.start()
    if not self._empty_us:
      names = self.device_names
      empty_us = self.time_each(links.empty_steps(names, _EMPTY_STEPS))
      self._empty_us = dict(zip(names, empty_us, strict=True))
    return self._empty_us[device]

  def measured_links(self) -> tuple[Link, ...]:
    """Measures a link for each ordered pair of devices."""
    result: list[Link] = []
    for pair in itertools.combinations(self.device_names, 2):
      result += links.worker_links(pair, links.timer_on(pair, self.time_each))
    return tuple(result)

  def _device(self, name: str) -> Device:
    kind, worker = host.kind_of(name), self._worker_of[name]
    return Device(
      name,
      f"{kind}-{worker.kind}" if worker.kind else kind,
      memory_bytes=self._devices[name],
      # Initial estimates, which profiles scale.
      extra={
        "hardware": grappler.DEFAULTS[kind],
        "worker": worker.name or worker.address,
      },
    )

  def cluster(self) -> Cluster:
    return Cluster(
      name=self._hosts.name,
      devices=tuple(self._device(name) for name in self._devices),
      links=self.measured_links(),
    )


def handshake(
  worker: workers.Worker, answer: messages.Answer
) -> workers.Handshake:
  """Reads the handshake in a worker's answer.

  Raises:
    MeasurementError: the worker does not answer, was not started by
      tfplace-worker, or runs another version of TensorFlow.
  """
  if answer.error:
    raise MeasurementError(
      f"{worker} does not answer as a TensorFlow worker: {answer.error}"
    )
  result = workers.read_handshake(answer.devices)
  if result is None:
    raise MeasurementError(
      f"{worker} is a TensorFlow server that tfplace-worker did not start"
      f" (its devices are {', '.join(answer.devices)})"
    )
  ours = metadata.version("tensorflow")
  if not result.has_version(ours):
    raise MeasurementError(
      f"{worker} runs TensorFlow {result.version}, and this process {ours};"
      " install the same everywhere"
    )
  return result
