"""Profiles a model on live devices, places it, and runs the placements."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from tfplace import bounds, measure, placers
from tfplace.bin import cli
from tfplace.core import Evaluation, Placement, Problem
from tfplace.errors import TfplaceError
from tfplace.extraction.traced import TracedStep
from tfplace.formats.json_file import write_json
from tfplace.plan import live_step, sources
from tfplace.report.trace import make_trace
from tfplace.simulate import Simulator

Event = dict[str, Any]
MEASURED = 10  # process id; simulated steps use lower ones


def fill_in(
  values: flags.FlagValues,
  live: measure.OpenCluster,
  name: str,
  sizes: dict[str, int],
  model: dict[str, Any],
) -> Iterator[None]:
  """Fills in `model`, row by row; yields after each."""
  problem, traced = profiled(values, live, name, sizes)
  model |= {
    "ops": problem.graph.num_ops,
    "edges": problem.graph.num_edges,
    "lower_bound_us": problem.lower_bound_us,
    "op_overhead_us": {
      d.name: d.op_overhead_us for d in problem.cluster.devices
    },
  }
  runner = Runner(values, live, problem, traced)
  for strategy in values.strategies:
    model["rows"][strategy] = runner.row(strategy)
    yield
  runner.save_trace(pathlib.Path(values.out).with_suffix(f".{name}.trace.json"))


def profiled(
  values: flags.FlagValues,
  live: measure.OpenCluster,
  name: str,
  sizes: dict[str, int],
) -> tuple[Problem, TracedStep]:
  """The model's problem with costs and links as measured here."""
  with cli.showing_progress(f"Extracting {name}"):
    traced = sources.trace(
      "model", name, batch_size=values.batch_size, sizes=sizes
    )
    graph = sources.op_graph(traced, live.cluster)
  with cli.showing_progress(f"Profiling {name}"):
    step = live_step.LiveStep(live, traced, _counts(values))
    problem = step.profiled(Problem(graph, live.cluster))
  with cli.showing_progress("Proving a lower bound"):
    return bounds.tightened(problem), traced


def _counts(values: flags.FlagValues) -> dict[str, Any]:
  return {
    "steps": values.steps,
    "warmup": values.warmup,
    "timeout_s": values.timeout_s,
  }


class Runner:
  """Places one problem and runs the placements, each different one once."""

  def __init__(
    self,
    values: flags.FlagValues,
    live: measure.OpenCluster,
    problem: Problem,
    traced: TracedStep,
  ) -> None:
    self._values = values
    self._problem = problem
    self._harness = live.harness(problem, traced, **_counts(values))
    self._simulator = Simulator(problem)
    self._ran: dict[bytes, tuple[str, Evaluation]] = {}
    self._fastest: tuple[float, Placement, measure.Trace] | None = None

  def row(self, strategy: str) -> dict[str, Any]:
    """Predicted and measured step of one placer."""
    values = self._values
    try:
      with cli.showing_progress(f"Placing by {strategy}", values.budget_s):
        result = placers.place(
          self._problem, strategy, values.budget_s, values.seed
        )
    except TfplaceError as error:  # it does not fit, or is not installed
      return {"error": str(error)}
    key = result.placement.devices.tobytes()
    if key not in self._ran:
      with cli.showing_progress(f"Running the placement of {strategy}"):
        (evaluation,) = self._harness.evaluate([result.placement])
      self._ran[key] = strategy, evaluation
      self._keep_fastest(result.placement, evaluation)
    first, evaluation = self._ran[key]
    (predicted,) = self._simulator.evaluate([result.placement])
    return {
      "predicted": _figures(predicted),
      "measured": _figures(evaluation),
      "placing_s": result.seconds,
      "same_as": None if first == strategy else first,
    }

  def _keep_fastest(self, placement: Placement, evaluation: Evaluation) -> None:
    traces = self._harness.traces
    faster = self._fastest is None or (
      evaluation.step_time_us < self._fastest[0]
    )
    if traces and faster:
      self._fastest = evaluation.step_time_us, placement, traces[0]

  def save_trace(self, path: pathlib.Path) -> None:
    """Writes the fastest placement's step, simulated and measured."""
    if self._fastest is None:
      return
    _, placement, trace = self._fastest
    result = make_trace(self._simulator.schedule(placement))
    names = [d.name for d in self._problem.cluster.devices]
    result["traceEvents"] += trace_events(trace, names)
    write_json(path, result)


def _figures(evaluation: Evaluation) -> dict[str, Any]:
  """JSON data, without infinite step times."""
  extra = evaluation.extra
  if "error" in extra:
    return {"error": extra["error"], "error_kind": extra["error_kind"]}
  kept = ("step_time_quartiles_us", "high_water_bytes", "non_finite")
  return {
    "step_time_us": evaluation.step_time_us,
    "feasible": evaluation.feasible,
    "peak_memory_bytes": dict(evaluation.peak_memory_bytes),
    "busy_us": dict(evaluation.busy_us),
    "bytes_moved": evaluation.bytes_moved,
    **{key: extra[key] for key in kept if key in extra},
  }


def trace_events(
  trace: measure.Trace,
  devices: Sequence[str],
  title: str = "measured devices",
) -> Iterator[Event]:
  """A measured step in Chrome's "Trace Event Format".

  Each device has a track of its ops and one of the tensors that it received.

  Args:
    trace: of the step.
    devices: names, in the order of the tracks.
    title: of the group of tracks.
  """
  yield _meta("process_name", 0, {"name": title})
  yield _meta("process_sort_index", 0, {"sort_index": MEASURED})
  tracks = {name: 2 * i for i, name in enumerate(devices)}
  for name, track in tracks.items():
    yield _meta("thread_name", track, {"name": name})
    yield _meta("thread_name", track + 1, {"name": f"{name} receives"})
  for op, time in trace.ops.items():
    if time.device in tracks:
      sizes = {str(i): size for i, size in time.output_bytes.items()}
      args = {"output_bytes": sizes}
      track = tracks[time.device]
      yield _slice(track, op, time.start_us, time.compute_us, args)
  for sent in trace.transfers:
    if sent.device in tracks:
      track = tracks[sent.device] + 1
      yield _slice(track, sent.label, sent.start_us, sent.duration_us, {})


def _meta(name: str, thread: int, args: Event) -> Event:
  return {"ph": "M", "name": name, "pid": MEASURED, "tid": thread, "args": args}


def _slice(
  thread: int, name: str, start_us: float, took_us: float, args: Event
) -> Event:
  return {
    "ph": "X",
    "name": name,
    "pid": MEASURED,
    "tid": thread,
    "ts": float(start_us),
    "dur": float(took_us),
    "args": args,
  }
