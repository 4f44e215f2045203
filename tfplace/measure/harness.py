"""Evaluator that runs placements on real devices.

A placement that crashes, hangs or runs out of memory gets an evaluation that
says so; the next one runs on fresh processes.
"""

import math
import time
from collections.abc import Sequence

import numpy as np

from tfplace.errors import MeasurementError
from tfplace.extraction.safety import side_effects
from tfplace.extraction.traced import TracedStep
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.order import ARRIVAL
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress, silent
from tfplace.graph.protocols import Evaluator
from tfplace.measure import evaluations, placed_step
from tfplace.measure.local import runtime
from tfplace.measure.session import messages
from tfplace.variants.units.steps import in_units

_GRACE_S = 10.0  # for a step that started in time
# gRPC may repeat a request, which TensorFlow's workers reject. Neither the
# workers nor the placement are at fault.
_SENT_TWICE = "request was received twice"


class MeasurementHarness(Evaluator):
  """Times placements of one traced step on the processes of a runtime.

  Args:
    problem: a problem with the graph of `traced` and the cluster of `workers`.
    workers: a `WorkerCluster`, `LocalDevices` or `HostCluster`; started on
      demand.
    merges: whether units that XLA compiles are merged as in `fit`; else each
      runs, and is timed, alone.
    steps: number of timed steps; the step time is their median.
    timeout_s: seconds after which a placement counts as hung.
    traced_steps: number of further steps with step stats; 0 gives no profile
      and no memory peaks.
    phase_s: seconds after which warm-up, timing and tracing each stop early; at
      least 3 steps are timed.
    allow_side_effects: runs the step even if its ops may touch files,
      processes, Python or the network.
    measure_s: seconds for all calls of `evaluate` together. The placements of a
      call share the remaining seconds evenly: slow steps run less often, but at
      least once. Without remaining seconds, no placement is run. The last
      placement may exceed the limit by 10 s.
    on_stage: called at the start of each placement and stage ("placement 2 of
      6, the timed steps") and with each step time.

  Attributes:
    traces: the step stats of the last placement.

  Raises:
    MeasurementError: the ops of `problem` differ from those of `traced`, its
      devices differ from those of `workers`, or an op may have side effects.
  """

  def __init__(
    self,
    problem: Problem,
    traced: TracedStep,
    workers: runtime.Runtime,
    *,
    merges: bool = True,
    warmup: int = 3,
    steps: int = 10,
    timeout_s: float = 120.0,
    traced_steps: int = 3,
    phase_s: float = 5.0,
    allow_side_effects: bool = False,
    measure_s: float = math.inf,
    on_stage: Progress = silent,
  ) -> None:
    if not allow_side_effects:
      effects = side_effects.when_run(traced.graph_def)
      side_effects.refuse(effects, repr(traced.name), MeasurementError)
    _check(problem, traced, workers)
    self.problem = problem
    self.traces: Sequence[messages.Trace] = ()
    self._traced = traced
    self._workers = workers
    self._merges = merges
    self._counts = {
      "warmup": warmup,
      "steps": steps,
      "traced_steps": traced_steps,
      "phase_s": phase_s,
    }
    self._timeout_s = timeout_s
    self._measure_s = self._left_s = measure_s
    self._share_s = measure_s  # share of the current placement
    self._on_stage = on_stage
    self._doing = ""

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Measures [batch, num_ops] device indices or `Placement`s, in order.

    `step_time_us` is the median. `extra` has `step_time_quartiles_us`,
    `step_times_us`, `setup_us`, `fetches` and `last_fetches` (scalars of the
    first and last step), `high_water_bytes` (of GPUs), `untimed_gpus` (whose
    `busy_us` are launches, since no kernels were traced) and `non_finite`
    (fetches with a NaN or infinity). For a failed placement, `extra` has
    `error` and `error_kind`: "died", "hung", "out_of_memory", "failed",
    "not_started" (the processes did not start) or "not_measured" (`measure_s`
    had elapsed).

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
    except runtime.ChildError as error:
      return evaluations.failed(self.problem, error)
    self.traces = reply.traces
    result = evaluations.evaluation(self._traced, placement, reply)
    text = f"{result.step_time_us / 1e3:.1f} ms a step"
    if "non_finite" in result.extra:
      text += f", with a NaN or infinity in {result.extra['non_finite'][0]!r}"
    if "untimed_gpus" in result.extra:
      text += ", without times of kernels, since CUPTI is missing"
    self._on_stage(f"{self._doing}: {text}, {len(reply.step_us)} timed")
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
      in_order=self._workers.runs_in_order
      or placement.problem.order != ARRIVAL,
      merges=self._merges,
      optimized=not self._workers.runs_in_order,
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
    try:
      self._workers.start()
    except runtime.ChildError as error:
      raise runtime.ChildError(
        "not_started", f"the placement was not run: {error}"
      ) from error
    timeout_s = min(self._timeout_s, self._left_s + _GRACE_S)
    return self._workers.run(
      request,
      timeout_s,
      lambda stage: self._on_stage(f"{self._doing}, {stage}"),
    )


def _check(
  problem: Problem, traced: TracedStep, workers: runtime.Runtime
) -> None:
  nodes = {node.name for node in in_units(traced, problem.graph).graph_def.node}
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
