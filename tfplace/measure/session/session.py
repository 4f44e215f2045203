"""Sessions in a measuring process that run placed graphs or query workers.

Without `StepRequest.optimized`, graphs run as placed: Grappler, constant
folding, common subexpression elimination, XLA and soft placement are off. Two
passes remain active: TensorFlow copies constants of up to 16 elements to each
device that reads them, and oneDNN chooses kernels within a device. Each session
has its own variables. Remote workers do not know each other, so each session
specifies the cluster (`ConfigProto.cluster_def`), with the first worker as its
master.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from tfplace.measure.session import messages, step_stats

_TIMEOUT_MS = 10_000  # for answers of a remote worker, except steps
_OWN = "/job:localhost/"  # devices of this process, without a server
# Timing takes at least this share of what building and compiling took, since
# the first steps are slower.
_STARTING_SHARE = 0.5
_MAX_FEED_BYTES = 256 << 20  # per run, since a message is limited to 2 GiB


def session_config(config: messages.ChildConfig) -> tf1.ConfigProto:
  """Returns session options, with TensorFlow's default optimization."""
  proto = tf1.ConfigProto(
    inter_op_parallelism_threads=config.threads,
    intra_op_parallelism_threads=config.op_threads,
    allow_soft_placement=False,
    isolate_session_state=True,
    device_count={"CPU": config.cpu_devices},
  )
  if not config.gpus:
    proto.device_count["GPU"] = 0
  elif config.gpu_memory_mb:
    virtual = proto.gpu_options.experimental.virtual_devices.add()
    virtual.memory_limit_mb.extend(config.gpu_memory_mb)
    proto.gpu_options.visible_device_list = "0"
  else:
    proto.gpu_options.allow_growth = True
  if config.remote:  # In order, tasks of the session's cluster.
    spec = tf.train.ClusterSpec({"worker": list(config.remote)})
    proto.cluster_def.CopyFrom(spec.as_cluster_def())
  return proto


def unoptimized(proto: tf1.ConfigProto) -> tf1.ConfigProto:
  """Returns a copy of session options that runs a graph as it is."""
  result = tf1.ConfigProto()
  result.CopyFrom(proto)
  optimizer = result.graph_options.optimizer_options
  optimizer.opt_level = tf1.OptimizerOptions.L0
  optimizer.global_jit_level = tf1.OptimizerOptions.OFF
  result.graph_options.rewrite_options.disable_meta_optimizer = True
  return result


def make_server(
  config: messages.ChildConfig, proto: tf1.ConfigProto
) -> tf.distribute.Server:
  """Creates this process's worker server without starting it."""
  return tf.distribute.Server(
    {config.job: list(config.addresses)},
    job_name=config.job,
    task_index=config.task,
    config=proto,
    start=False,
  )


def devices(target: str, proto: tf1.ConfigProto) -> dict[str, float]:
  """Maps the names of the devices that a session sees to memory in bytes."""
  with tf1.Session(target, graph=tf.Graph(), config=proto) as session:
    listed = session.list_devices()
  return {
    d.name: float(d.memory_limit_bytes)
    for d in listed
    if d.device_type in ("CPU", "GPU")
  }


def run_steps(
  request: messages.StepRequest,
  target: str,
  proto: tf1.ConfigProto,
  report: Callable[[str], None],
) -> messages.StepReply:
  """Initializes, warms up, times and traces the steps of `request`.

  Args:
    request: the steps.
    target: session target, "" for this process's devices.
    proto: options of the session.
    report: called with each stage before it starts.
  """
  report("building the session")
  started = time.perf_counter()
  graph, as_placed = _imported(request.graph_def), unoptimized(proto)
  config = proto if request.optimized else as_placed
  traces: list[messages.Trace] = []
  with tf1.Session(target, graph=graph, config=config) as session:
    report("initialising the variables")
    _initialize(session, request)
    setup_us = _since_us(started)
    step = session.make_callable(_targets(graph, request))
    local = [d.name for d in session.list_devices() if _OWN in d.name]
    step_stats.reset_high_water(local)
    report("the warm-up steps")
    first = _values(session, request)
    if request.warmup:  # Grappler and XLA take time for `step`, too.
      step()
    clock = _Clock(request, time.perf_counter() - started)
    for _ in clock.repeat(request.warmup - 1, 1 / 3, at_least=0, hurried=0):
      step()
    report("the timed steps")
    timed = clock.repeat(request.steps, 2 / 3, at_least=3, hurried=1)
    step_us = [_time_us(step) for _ in timed]
    if not request.optimized:
      report("the traced steps")
      traces = _traces(session, request, clock)
    last = _values(session, request)
    high_water = step_stats.high_water_bytes(local)
  if request.optimized and request.traced_steps:
    # Grappler renames ops, so they are traced without it, and without the
    # variables of the first session, which lives as long as its step.
    del step
    with tf1.Session(target, graph=graph, config=as_placed) as session:
      _initialize(session, request)
      report("the traced steps")
      traces = _traces(session, request, clock)
  return messages.StepReply(step_us, first, last, traces, setup_us, high_water)


def time_each(
  request: messages.TimesRequest,
  target: str,
  proto: tf1.ConfigProto,
  report: Callable[[str], None],
) -> list[float]:
  """Returns the time of the fastest step of each target, in microseconds."""
  graph = _imported(request.graph_def)
  fastest_us, began = [], time.perf_counter()
  config = unoptimized(proto)
  with tf1.Session(target, graph=graph, config=config) as session:
    session.run(list(request.initializers))
    for i, name in enumerate(request.targets):
      if i % 10 == 0:
        report(f"transfers, {i} of {len(request.targets)}")
      step = session.make_callable([graph.get_operation_by_name(name)])
      step()
      step_us = [_time_us(step)]
      while (
        len(step_us) < request.steps
        and time.perf_counter() - began < request.seconds
      ):
        step_us.append(_time_us(step))
      fastest_us.append(min(step_us))
  return fastest_us


def _imported(graph_def: bytes) -> tf.Graph:
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(tf1.GraphDef.FromString(graph_def), name="")
  graph.finalize()
  return graph


def _targets(
  graph: tf.Graph, request: messages.StepRequest
) -> list[tf.Operation]:
  fetched = [graph.get_tensor_by_name(f).op for f in request.fetches.values()]
  nodes = [graph.get_operation_by_name(t) for t in request.targets]
  return list(dict.fromkeys([*fetched, *nodes]))


class _Clock:
  """Time limits of the phases of a measurement, after `starting_s`."""

  def __init__(self, request: messages.StepRequest, starting_s: float) -> None:
    self._started = time.perf_counter()
    self._seconds = max(request.seconds, _STARTING_SHARE * starting_s)
    self._request = request

  def repeat(
    self, count: int, share: float, *, at_least: int, hurried: int
  ) -> Iterator[int]:
    """Yields up to `count` turns.

    Args:
      count: number of turns if time permits.
      share: fraction of the seconds at which this phase ends.
      at_least: turns that run regardless of `phase_s`.
      hurried: turns that run regardless of `seconds`.
    """
    began = time.perf_counter()
    ends = self._started + share * self._seconds
    for turn in range(count):
      now = time.perf_counter()
      if turn >= at_least and now - began > self._request.phase_s:
        return
      if turn >= hurried and now > ends:
        return
      yield turn


def _time_us(step: Callable[[], object]) -> float:
  started = time.perf_counter()
  step()
  return _since_us(started)


def _since_us(started: float) -> float:
  return (time.perf_counter() - started) * 1e6


def _values(
  session: tf1.Session, request: messages.StepRequest
) -> dict[str, np.ndarray]:
  """Fetches values in an untimed step, because fetching takes time."""
  values, _ = session.run([dict(request.fetches), list(request.targets)])
  return {name: np.asarray(value) for name, value in values.items()}


def _traces(
  session: tf1.Session, request: messages.StepRequest, clock: _Clock
) -> list[messages.Trace]:
  """Runs steps with step stats."""
  targets = _targets(session.graph, request)
  known = {op.name for op in session.graph.get_operations()}
  options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
  traces = []
  for _ in clock.repeat(request.traced_steps, 1.0, at_least=1, hurried=1):
    metadata = tf1.RunMetadata()
    session.run(targets, options=options, run_metadata=metadata)
    traces.append(step_stats.parse(metadata.step_stats, known))
  return traces


def _initialize(session: tf1.Session, request: messages.StepRequest) -> None:
  """Runs the initializers in batches that fit into a message."""
  batch: list[str] = []
  feeds: dict[str, np.ndarray] = {}
  size = 0
  pairs = zip(request.initializers, request.initializer_feeds, strict=True)
  for node, (tensor, value) in pairs:
    batch.append(node)
    feeds[tensor] = value
    size += value.nbytes
    if size >= _MAX_FEED_BYTES:
      session.run(batch, feed_dict=feeds)
      batch, feeds, size = [], {}, 0
  if batch:
    session.run(batch, feed_dict=feeds)


def answer(address: str) -> messages.Answer:
  """Queries a worker's devices and ends sessions of earlier harnesses."""
  config = tf1.ConfigProto(operation_timeout_in_ms=_TIMEOUT_MS)
  target = f"grpc://{address}"
  try:
    with tf1.Session(target, graph=tf.Graph(), config=config) as asked:
      listed = asked.list_devices()
    tf1.Session.reset(target, config=config)
  except tf.errors.OpError as error:
    return messages.Answer({}, error.message)
  return messages.Answer(
    {d.name: float(d.memory_limit_bytes) for d in listed},
    incarnation=min(d.incarnation for d in listed),
  )
