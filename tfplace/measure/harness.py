"""The evaluator that runs placements on real devices.

It is an `Evaluator`, as the simulator. A placement that kills its process,
hangs, runs out of memory or yields other numbers gets an evaluation that says
so, and the next one starts on fresh processes.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.order import ARRIVAL
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.errors import MeasurementError
from tfplace.extraction import stages
from tfplace.extraction.safety import side_effects
from tfplace.extraction.traced import TracedStep
from tfplace.measure import evaluations, placed_step
from tfplace.measure.calibrate import splits
from tfplace.measure.local import runtime
from tfplace.measure.session import messages

_START_ATTEMPTS = 3
_GRACE_S = 10.0  # for a step that began in time to end
# gRPC may send a request again, which TensorFlow's workers refuse: nothing is
# wrong with them, nor with the placement.
_SENT_TWICE = "request was received twice"


class MeasurementHarness:
  """Times placements of one traced step on the processes of a runtime.

  Args:
    problem: its graph is that of `traced`, its cluster that of `workers`.
    traced: the step that runs.
    workers: a `WorkerCluster` or `LocalDevices`; started when needed.
    warmup: steps that are not timed.
    steps: timed steps; the step time is their median.
    timeout_s: for one placement, after which it counts as hanging.
    traced_steps: further steps with step stats; 0: no profile, no peaks.
    phase_s: warming up, timing and tracing each stop after so many seconds,
      so that a slow step is run less often (3 timed steps at least).
    seed: of inputs without a sample value.
    allow_side_effects: run it even if its ops may touch files, processes,
      Python or the network.
    measure_s: seconds of all calls of `evaluate` together. The placements of
      a call share what is left evenly: a slow step is run less often, once at
      least. When nothing is left, no placement is run. The last one may take
      10 s longer.
    on_stage: called as each placement and stage begins, such as "placement 2
      of 6, the timed steps", and with each step time.

  Attributes:
    traces: the step stats of the last placement.

  Raises:
    MeasurementError: the ops of `problem` are not the nodes of `traced`, or
      its devices not those of `workers`, or an op may have side effects.
  """

  def __init__(
    self,
    problem: Problem,
    traced: TracedStep,
    workers: runtime.Runtime,
    warmup: int = 3,
    steps: int = 10,
    timeout_s: float = 120.0,
    traced_steps: int = 3,
    phase_s: float = 5.0,
    seed: int = 0,
    allow_side_effects: bool = False,
    measure_s: float = math.inf,
    on_stage: Callable[[str], None] = stages.ignore,
  ) -> None:
    _check(problem, traced, workers)
    if not allow_side_effects:
      found = side_effects.when_run(traced.graph_def)
      side_effects.refuse(found, repr(traced.name), MeasurementError)
    self.problem = problem
    self.traces: Sequence[messages.Trace] = ()
    self._traced = traced
    self._workers = workers
    self._counts = {
      "warmup": max(0, warmup),
      "steps": max(1, steps),
      "traced_steps": max(0, traced_steps),
      "phase_s": phase_s,
    }
    self._timeout_s = timeout_s
    self._seed = seed
    self._measure_s = self._left_s = measure_s
    self._share_s = measure_s  # of the placement that runs
    self._on_stage = on_stage
    self._doing = ""
    self._reference = _Reference(self._run, problem)

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Measures [batch, num_ops] device indices, or `Placement`s, in order.

    `step_time_us` is the median; `extra` has `step_time_quartiles_us`,
    `step_times_us`, `setup_us`, `fetches` and `last_fetches` (scalars of the
    first and the last step), `high_water_bytes` (of GPUs) and `non_finite`
    (fetches with a NaN or an infinity, also with every op on one device). Of a
    placement that could not be run it has `error` and `error_kind`: "died",
    "hung", "out_of_memory", "failed", "non_finite" (numbers that are finite on
    one device), "not_started" (the processes did not start) or "not_measured"
    (`measure_s` were over).

    Raises:
      PlacementError: a row is not a placement of the problem.
    """
    rows = [
      p if isinstance(p, Placement) else Placement(self.problem, p)
      for p in placements
    ]
    result = []
    for i, row in enumerate(rows):
      self._share_s = self._left_s / (len(rows) - i)
      self._doing = f"placement {i + 1} of {len(rows)}"
      began = time.monotonic()
      result.append(self._measure(row))
      self._left_s -= time.monotonic() - began
    return result

  def _measure(self, placement: Placement) -> Evaluation:
    self.traces = ()
    try:
      reply = self._run(placement)
      self._reference.check(placement, reply)
    except runtime.ChildError as error:
      return evaluations.failed(self.problem, error)
    self.traces = reply.traces
    held = placed_step.held_bytes(self._traced, placement.assignments)
    result = evaluations.evaluation(placement, reply, held)
    step = f"{result.step_time_us / 1e3:.1f} ms a step"
    self._on_stage(f"{self._doing}: {step}, {len(reply.step_us)} timed")
    return result

  def _run(self, placement: Placement) -> messages.StepReply:
    if self._left_s <= 0:
      raise runtime.ChildError(
        "not_measured",
        "the placement was not run: measuring the others took the"
        f" {self._measure_s:g} s that were allowed (measure_s)",
      )
    self._on_stage(f"{self._doing}, building the graph")
    request = placed_step.step_request(
      self._traced,
      placement,
      self._seed,
      self._workers.runs_in_order or placement.problem.order != ARRIVAL,
      seconds=self._share_s,
      **self._counts,
    )
    try:
      return self._sent(request)
    except runtime.ChildError as error:
      if _SENT_TWICE not in str(error):
        raise
      return self._sent(request)

  def _sent(self, request: messages.StepRequest) -> messages.StepReply:
    self._start()
    timeout_s = min(self._timeout_s, self._left_s + _GRACE_S)
    self._workers.on_stage = lambda s: self._on_stage(f"{self._doing}, {s}")
    try:
      return self._workers.run(request, timeout_s)
    finally:
      self._workers.on_stage = stages.ignore

  def _start(self) -> None:
    """Starts the processes unless they run."""
    for left in reversed(range(_START_ATTEMPTS)):
      try:
        return self._workers.start()
      except runtime.ChildError as error:
        if not left:
          raise runtime.ChildError(
            "not_started", f"the placement was not run: {error}"
          ) from error


def _check(
  problem: Problem, traced: TracedStep, workers: runtime.Runtime
) -> None:
  nodes = {node.name for node in traced.graph_def.node}
  different = nodes.symmetric_difference(problem.graph.names)
  if different:
    name = min(different)
    where = "model's step" if name in nodes else "graph of the problem"
    raise MeasurementError(
      f"graph {problem.graph.name!r} is not that of the step to run:"
      f" {len(different)} ops are in one of them only, such as {name!r} in the"
      f" {where}",
      op=name,
    )
  known = set(workers.device_names)
  for device in problem.cluster.devices:
    if device.name not in known:
      raise MeasurementError(
        f"device {device.name!r} of cluster {problem.cluster.name!r} is none"
        f" of those to measure on: {', '.join(workers.device_names)}",
        device=device.name,
      )


class _Reference:
  """The step on one device, which runs once, when it is first needed.

  A model may yield NaNs on made-up inputs wherever its ops run. A placement is
  at fault only for numbers that are finite with every op on one device.

  Args:
    run: runs a placement.
    problem: its groups run on the first device that they may be on.
  """

  def __init__(
    self,
    run: Callable[[Placement], messages.StepReply],
    problem: Problem,
  ) -> None:
    self._run = run
    self._problem = problem
    self._broken: frozenset[str] | None = None
    self._why_unknown = ""

  def check(self, placement: Placement, reply: messages.StepReply) -> None:
    """Checks that what is finite on one device is finite here.

    Raises:
      ChildError: of the kind "non_finite"; names what is not.
    """
    broken = evaluations.non_finite(reply)
    if not broken:
      return
    row = splits.home(self._problem)[self._problem.group_of]
    home = Placement(self._problem, row.astype(np.int32))
    if (placement.devices == home.devices).all():
      self._broken = frozenset(broken)
    elif self._broken is None:
      self._find(home)
    new = [name for name in broken if name not in (self._broken or ())]
    if new:
      raise runtime.ChildError(
        "non_finite",
        f"measuring: {', '.join(map(repr, new))} has a NaN or an infinity,"
        f" {self._why_unknown or 'and none with every op on one device'}",
      )

  def _find(self, home: Placement) -> None:
    try:
      self._broken = frozenset(evaluations.non_finite(self._run(home)))
      self._why_unknown = ""
    except runtime.ChildError as error:  # tried again at the next NaN
      self._why_unknown = f"which one device cannot be compared with: {error}"
