"""The messages between a measuring process and its parent.

Plain data, pickled over a socket pair that only the two share. Nothing here
imports TensorFlow, which a child loads later.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class ChildConfig:
  """How a child process sets up its TensorFlow runtime.

  Attributes:
    addresses: host:port of every worker; empty for a process without a
      server, whose session runs on its own devices.
    task: index of this worker in `addresses`.
    job: name of the server's job.
    listens_on: the only address whose connections the server takes; None:
      loopback, where the kernel allows to choose.
    remote: host:port of workers that others started, on which the sessions of
      this process run; the first is their master.
    threads: of the op executor.
    op_threads: inside an op; 0: as many as cores.
    core: the core that the process runs on, or None for any.
    cpu_devices: number of logical CPU devices.
    gpu_memory_mb: memory of each logical GPU of the first GPU; empty: every
      GPU, whole.
    gpus: whether GPUs are used at all.
    memory_limit_bytes: by which the process's data may grow once its runtime
      has started, or None.
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
  memory_limit_bytes: float | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
  """A remote worker's answer to the request for its devices.

  Attributes:
    devices: name, as the worker gives it -> memory, bytes.
    error: why it did not answer, or "".
    incarnation: a random number, new at each start of the worker.
  """

  devices: Mapping[str, float]
  error: str = ""
  incarnation: int = 0


@dataclasses.dataclass(frozen=True)
class Ready:
  """A child's first message: its runtime has started.

  Attributes:
    loopback_only: whether its server takes connections of this host only.
    devices: name -> memory of its devices, bytes.
    hardware: name -> what the device is, such as "NVIDIA H100 80GB HBM3".
    answers: of each worker of `ChildConfig.remote`.
    unconnected: two of them, of which one does not reach the other, or None.
  """

  loopback_only: bool
  devices: Mapping[str, float]
  hardware: Mapping[str, str]
  answers: Sequence[Answer] = ()
  unconnected: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Failure:
  """A request failed in a child that is still alive.

  Attributes:
    kind: "out_of_memory", "address_in_use", "lost" (another worker went away)
      or "failed".
    message: one line.
  """

  kind: str
  message: str


@dataclasses.dataclass(frozen=True)
class Stage:
  """The stage of a measurement that begins."""

  name: str


@dataclasses.dataclass(frozen=True)
class StepRequest:
  """A placed graph to run.

  Attributes:
    graph_def: serialised GraphDef, a device on every node, nothing to feed.
    initializers: nodes to run once before the first step.
    initializer_feeds: per initializer, the tensor to feed and its value.
    fetches: tensors whose values are fetched in one step before and one after
      all others.
    targets: nodes that every step runs.
    warmup: steps that are not counted.
    steps: timed steps.
    traced_steps: further steps with step stats.
    phase_s: warming up, timing and tracing each begin no further step after
      so many seconds; 1, 3 and 1 steps run in any case.
    seconds: for all of it: a third may go by before the last warm-up step
      begins, two thirds before the last timed one, all before the last traced
      one; 0, 1 and 1 steps run in any case.
  """

  graph_def: bytes
  initializers: Sequence[str]
  initializer_feeds: Sequence[tuple[str, np.ndarray]]
  fetches: Sequence[str]
  targets: Sequence[str]
  warmup: int
  steps: int
  traced_steps: int
  phase_s: float
  seconds: float = math.inf


@dataclasses.dataclass(frozen=True)
class OpTime:
  """One op of one traced step.

  Attributes:
    device: where it ran.
    start_us: start of its kernel, since the step's first op.
    compute_us: time in its kernel.
    output_bytes: output index -> bytes of the tensor.
  """

  device: str
  start_us: float
  compute_us: float
  output_bytes: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Transfer:
  """One tensor received by a device.

  Attributes:
    label: TensorFlow's text: size, rate, producer, devices.
    device: the device that received.
    start_us: of the request for it, since the step's first op.
    duration_us: from the request to the arrival; waiting for the producer
      included.
  """

  label: str
  device: str
  start_us: float
  duration_us: float


@dataclasses.dataclass(frozen=True)
class Trace:
  """Step stats of one step.

  Attributes:
    ops: op name -> its time.
    transfers: tensors received.
    peak_bytes: device -> peak of what ops allocated in the step, without
      variables and constants.
  """

  ops: Mapping[str, OpTime]
  transfers: Sequence[Transfer]
  peak_bytes: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class StepReply:
  """What the steps of a `StepRequest` took.

  Attributes:
    step_us: [steps] wall time of each timed step.
    first_values: the fetches of the first step.
    last_values: the fetches of the last step.
    traces: one per traced step.
    setup_us: building the session and initialising the variables.
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
