"""Messages between a measuring process and its parent, without TensorFlow."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tfplace.graph.cluster import Device


@dataclasses.dataclass(frozen=True)
class ChildConfig:
  """Configuration of a child's TensorFlow runtime.

  Attributes:
    addresses: host:port of every worker; empty for a process without a server,
      whose session runs on its own devices.
    task: index of this worker in `addresses`.
    job: name of the server's job.
    listens_on: the only address on which the server accepts connections; None
      for loopback where the kernel supports the restriction.
    remote: host:port of existing workers that run the sessions of this process;
      the first is their master.
    threads: threads of the op executor.
    op_threads: threads inside an op; 0 for as many as cores.
    core: the core that the process runs on, or None for any.
    cpu_devices: number of logical CPU devices.
    gpu_memory_mb: memory of each logical GPU on the first GPU; empty to use all
      GPUs whole.
    gpus: whether GPUs are used at all.
    describes_gpus: whether the GPUs are described, which may measure them.
  """

  addresses: Sequence[str] = ()
  task: int = 0
  job: str = "worker"
  listens_on: str | None = None
  remote: Sequence[str] = ()
  threads: int = 1
  op_threads: int = 1
  core: int | None = None
  cpu_devices: int = 1
  gpu_memory_mb: Sequence[float] = ()
  gpus: bool = False
  describes_gpus: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
  """Answer of a remote worker to the request for its devices.

  Attributes:
    devices: device name, as the worker gives it -> memory, bytes.
    error: reason for a missing answer, or "".
    incarnation: random number, new at each start of the worker.
  """

  devices: Mapping[str, float]
  error: str = ""
  incarnation: int = 0


@dataclasses.dataclass(frozen=True)
class Ready:
  """First message of a child: its runtime has started.

  Attributes:
    devices: device name -> memory, bytes.
    gpus: descriptions of its GPUs if `ChildConfig.describes_gpus`.
    answers: answer of each worker in `ChildConfig.remote`.
  """

  devices: Mapping[str, float]
  gpus: Sequence[Device] = ()
  answers: Sequence[Answer] = ()


@dataclasses.dataclass(frozen=True)
class Failure:
  """Failure of a request in a child that is still alive.

  Attributes:
    kind: "out_of_memory", "address_in_use", "lost" (another worker is gone) or
      "failed".
    message: one line.
  """

  kind: str
  message: str


@dataclasses.dataclass(frozen=True)
class Stage:
  """Start of a stage of a measurement."""

  name: str


@dataclasses.dataclass(frozen=True)
class StepRequest:
  """A placed graph to run.

  Attributes:
    graph_def: serialized GraphDef with a device on every node and no feeds.
    initializers: nodes to run once before the first step.
    initializer_feeds: tensor to feed and its value, for each initializer.
    fetches: name -> tensor to fetch in one step before and one after all
      others.
    targets: nodes that every step runs.
    warmup: number of untimed steps; if it is not 0, the first always runs.
    steps: number of timed steps.
    traced_steps: number of further steps with step stats.
    phase_s: seconds after which warm-up, timing and tracing each start no
      further step; at least 1 (if any), 3 and 1 steps run.
    seconds: seconds for all phases after compiling, or half of what that took:
      no warm-up step starts after a third, no timed step after two thirds, no
      traced step after all of them; at least 0, 1 and 1 steps run.
    optimized: whether timed steps run with Grappler and XLA as functions of
      TensorFlow do. Traced steps never do, so that ops keep their names.
  """

  graph_def: bytes
  initializers: Sequence[str]
  initializer_feeds: Sequence[tuple[str, np.ndarray]]
  fetches: Mapping[str, str]
  targets: Sequence[str]
  warmup: int
  steps: int
  traced_steps: int
  phase_s: float
  seconds: float = math.inf
  optimized: bool = False


@dataclasses.dataclass(frozen=True)
class TimesRequest:
  """A placed graph with several ends, each of which is timed alone.

  Attributes:
    graph_def: serialized GraphDef with a device on every node.
    initializers: nodes to run once before the first step.
    targets: nodes to run and time, one after the other.
    steps: timed steps of each; a first one is not timed.
    seconds: after which each target has no more than one timed step.
  """

  graph_def: bytes
  initializers: Sequence[str]
  targets: Sequence[str]
  steps: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class OpTime:
  """One op of a traced step.

  Attributes:
    device: the device that ran the op.
    start_us: start of its kernel since the step's first op.
    compute_us: time in its kernel.
    output_bytes: output index -> bytes of the tensor.
  """

  device: str
  start_us: float
  compute_us: float
  output_bytes: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Trace:
  """Step stats of one step.

  Attributes:
    ops: op name -> its time.
    peak_bytes: device -> peak of allocations by ops in the step, without
      variables and constants.
    untimed_gpus: GPUs whose ops have the time of their launch, because
      TensorFlow traced no kernels.
  """

  ops: Mapping[str, OpTime]
  peak_bytes: Mapping[str, float]
  untimed_gpus: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class StepReply:
  """Measurements of a `StepRequest`.

  Attributes:
    step_us: [steps] wall time of each timed step.
    first_values: fetches of the first step.
    last_values: fetches of the last step.
    traces: one trace per traced step.
    setup_us: time to build the session and initialize the variables.
    high_water_bytes: GPU -> peak of its allocator during the steps.
  """

  step_us: Sequence[float]
  first_values: Mapping[str, np.ndarray]
  last_values: Mapping[str, np.ndarray]
  traces: Sequence[Trace]
  setup_us: float
  high_water_bytes: Mapping[str, float] = dataclasses.field(
    default_factory=dict
  )
