"""Measured costs and step time of a traced step on this process's devices.

The step runs in its own session with its own variables, so the weights,
optimizer, metrics and random states of the model stay unchanged. The session
has the devices, threads and optimization of this process, as `fit` does; only
the traced steps run without Grappler, so that ops keep their names.
"""

import dataclasses
import gc
import logging
import os
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from google.protobuf import text_format
from tensorflow.python.eager import context

from tfplace.cost import measured_costs
from tfplace.errors import MeasurementError
from tfplace.extraction.safety import side_effects
from tfplace.extraction.traced import TracedStep, feed_values
from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.order import ARRIVAL
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure import evaluations, placed_step
from tfplace.measure.calibrate import profiling
from tfplace.measure.local import host, runtime
from tfplace.measure.session import messages, session
from tfplace.plan import graph_cache, graph_keys, local_devices

_logger = logging.getLogger("tfplace")

# Numbers of steps, with time limits per phase and in total.
_COUNTS = {
  "warmup": 3,
  "steps": 20,
  "traced_steps": 5,
  "phase_s": 1.0,
  "seconds": 10.0,
}
_OVERHEAD = "op_overhead_us"  # Key of `OpGraph.extra`.
_STEP = "step_time_us"  # Key of `OpGraph.extra`.


def measured_problem(
  problem: Problem, traced: TracedStep, seconds: float
) -> Problem:
  """Returns the problem with costs measured in steps on a device of each kind.

  Op times and overhead of a kind are scaled so that the simulated step time
  equals the measured one, see `profiling.profiled`. The graph cache stores the
  result. Steps take at most `seconds`, and at most 10; a slow step runs less
  often, but at least once timed and once traced.

  Raises:
    MeasurementError: the step cannot be run beside the model, because it has
      side effects, reads a table of the model, or does not fit in memory.
  """
  folder = graph_cache.default_directory()
  content = _content(traced) + repr(problem.graph.members).encode()
  key = graph_keys.measured_key(content, _devices(problem.cluster))
  cache = graph_cache.GraphCache(folder) if folder and key else None
  graph = cache.load(key) if cache and key else None
  if graph is None or graph.names != problem.graph.names:
    graph = _measured(problem, traced, seconds)
    if cache and key:
      cache.store(key, graph)
  times = {kind: graph.time_us[kind] for kind in problem.graph.kinds}
  extra = {
    **problem.graph.extra,
    "costs": "measured",
    _STEP: graph.extra[_STEP],
    measured_costs.STEP_NOISE: measured_costs.noise_of(graph),
  }
  timed = dataclasses.replace(problem.graph, time_us=times, extra=extra)
  cluster = profiling.with_overheads(problem.cluster, graph.extra[_OVERHEAD])
  return Problem(timed, cluster, order=problem.order)


def _measured(problem: Problem, traced: TracedStep, seconds: float) -> OpGraph:
  """Returns the graph with measured times; `extra` has overhead and step."""
  kinds = {device.kind for device in problem.cluster.devices}
  seconds = min(seconds, _COUNTS["seconds"]) / len(kinds)
  phase_s = min(seconds / 3, _COUNTS["phase_s"])
  counts = {**_COUNTS, "seconds": seconds, "phase_s": phase_s}

  def run(row: np.ndarray) -> tuple[Sequence[float], Sequence[messages.Trace]]:
    placement = Placement(problem, row)
    reply = _run(traced, placement, merges=False, **counts)
    return reply.step_us, reply.traces

  profile = profiling.profiled(problem, run)
  graph = profile.apply(problem).graph
  home = problem.cluster.devices[0].kind
  measured = {
    _OVERHEAD: profile.op_overhead_us,
    _STEP: profile.step_time_us[home],
  }
  return dataclasses.replace(graph, extra={**graph.extra, **measured})


def _content(traced: TracedStep) -> bytes:
  """Serializes the step without the values of variables and inputs.

  Numbers in function and gradient names are normalized, because TensorFlow
  counts them over the whole process.
  """
  graph_def = tf1.GraphDef()
  graph_def.CopyFrom(traced.graph_def)
  for node in graph_def.node:
    if "_gradient_op_type" in node.attr:
      del node.attr["_gradient_op_type"]
  graph = graph_def.SerializeToString(deterministic=True)
  names = " ".join(f.signature.name for f in graph_def.library.function)
  numbers = sorted(set(re.findall(r"_(\d+)", names)))
  if numbers:  # Lengths in the binary format depend on them.
    text = text_format.MessageToString(graph_def)
    pattern = rf"_(?:{'|'.join(numbers)})(?!\d)"
    graph = re.sub(pattern, "", text).encode()
  feeds = sorted((n, f.shape, f.dtype.name) for n, f in traced.feeds.items())
  run = feeds, traced.fetches, sorted(traced.targets)
  return graph + repr(run).encode()


def _devices(cluster: Cluster) -> dict[str, Any]:
  threading = tf.config.threading
  return {
    "devices": [[d.name, d.kind] for d in cluster.devices],
    "gpus": [
      tf.config.experimental.get_device_details(gpu).get("device_name", "")
      for gpu in tf.config.get_visible_devices("GPU")
    ],
    "cpu": [host.cpu_name(), len(os.sched_getaffinity(0))],
    "threads": [
      threading.get_inter_op_parallelism_threads(),
      threading.get_intra_op_parallelism_threads(),
    ],
  }


def measure(traced: TracedStep, placement: Placement, steps: int) -> Evaluation:
  """Measures a placed step with synthetic weights and inputs.

  The median of the steps is used. Errors are those of `measured_problem`.
  """
  counts = {**_COUNTS, "steps": steps, "traced_steps": 2}
  in_order = placement.problem.order != ARRIVAL
  reply = _run(traced, placement, in_order=in_order, **counts)
  return evaluations.evaluation(traced, placement, reply)


def compiled_us(traced: TracedStep, steps: int = 10) -> float | None:
  """Returns the median time of the step on one device, compiled as in `fit`.

  Returns:
    None if the step cannot be compiled, has side effects or lacks the memory.
  """
  try:
    return _compiled_us(traced, steps)
  finally:
    gc.collect()  # A traced function is a cycle that holds its variables.


def _compiled_us(traced: TracedStep, steps: int) -> float | None:
  outside = {*traced.variables, *traced.feeds}
  graph_def = tf1.GraphDef(
    versions=traced.graph_def.versions, library=traced.graph_def.library
  )
  for node in traced.graph_def.node:
    if node.name not in outside:
      graph_def.node.add().CopyFrom(node)
      graph_def.node[-1].input[:] = [
        text
        for text in node.input
        if not (text.startswith("^") and text[1:] in outside)
      ]
    elif node.op not in ("VarHandleOp", "Placeholder"):
      return None
  if side_effects.when_run(traced.graph_def):
    return None
  ends, count = [*traced.fetches, *traced.targets], len(traced.fetches)
  try:
    with tf.device(local_devices.default_device()):
      variables = {
        name: tf.Variable(tf.zeros(spec.shape, spec.dtype))
        for name, spec in traced.variables.items()
      }
      outer = {f"{name}:0": v.handle for name, v in variables.items()}
      outer |= {n: tf.constant(v) for n, v in feed_values(traced).items()}

      @tf.function(jit_compile=True, autograph=False)
      def step() -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        given = {name: graph.capture(x) for name, x in outer.items()}
        results = tf.graph_util.import_graph_def(
          graph_def, given, ends, name=""
        )
        with tf.control_dependencies(results[count:]):
          return [tf.identity(tensor) for tensor in results[:count]]

      step_us = []
      for _ in range(steps + 2):
        began = time.perf_counter()
        for value in step():
          value.numpy()
        step_us.append(1e6 * (time.perf_counter() - began))
  except (tf.errors.OpError, ValueError) as error:
    _logger.info("the step of %r was not compiled: %s", traced.name, error)
    return None
  return statistics.median(step_us[2:])


def _run(
  traced: TracedStep, placement: Placement, **options: Any
) -> messages.StepReply:
  """Runs the step as this process does, by the options of `step_request`."""
  finding = side_effects.when_run(traced.graph_def)
  side_effects.refuse(finding, repr(traced.name), MeasurementError)
  proto = context.context().config
  proto.isolate_session_state = True
  proto.allow_soft_placement = False
  try:
    request = placed_step.step_request(
      traced, placement, optimized=True, **options
    )
    if placement.problem.graph.members:
      gc.collect()  # Cycles hold the variables that units were lowered with.
    return session.run_steps(request, "", proto, lambda _: None)
  except tf.errors.OpError as error:
    reason = (error.message.strip() or type(error).__name__).splitlines()[0]
    full = isinstance(error, tf.errors.ResourceExhaustedError)
    raise runtime.ChildError(
      "out_of_memory" if full else "failed",
      f"the step of {traced.name!r} could not be run: {reason}",
    ) from error
