"""Checks of this host and its devices, as lines and findings."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfplace.bin.checks.children import Report
from tfplace.bin.checks.findings import Finding
from tfplace.core.units import format_bytes, format_us
from tfplace.measure.local import host
from tfplace.plan import graph_keys

_LEAST_CORES = 2
_BACKEND = "tensorflow"
# Files of drivers, by which a host has a GPU for TensorFlow.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclasses.dataclass(frozen=True)
class Host:
  """Processor and memory of this host.

  Attributes:
    cpu: name of the processor.
    cores: cores that this process may use.
    memory_bytes: memory of the host.
    free_bytes: memory that programs can allocate.
  """

  cpu: str
  cores: int
  memory_bytes: float
  free_bytes: float


def this_host() -> Host:
  """Returns processor and memory of this host."""
  return Host(
    host.cpu_name(),
    _cores(),
    host.memory_bytes(),
    host.free_bytes(),
  )


def _cores() -> int:
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def device_lines(about: Host, facts: Mapping[str, Any]) -> Iterator[str]:
  """Yields a line for the processor and for each device."""
  yield (
    f"{about.cpu}, {about.cores} core{'s' * (about.cores != 1)},"
    f" {format_bytes(about.memory_bytes)}"
    f" ({format_bytes(about.free_bytes)} free)"
  )
  for i, gpu in enumerate(facts.get("gpus", ())):
    text = f"GPU {i}: {gpu['name']}"
    if gpu["compute_capability"]:
      text += f", compute capability {gpu['compute_capability']}"
    yield text
  devices = facts.get("logical_devices")
  if devices is not None:
    # TensorFlow names a limit for each CPU, which is none.
    named = [
      f"{d['name']} ({format_bytes(d['memory_bytes'])})"
      if d["memory_bytes"] and not d["name"].startswith("CPU")
      else d["name"]
      for d in devices
    ]
    yield f"logical devices: {', '.join(named)}"


def link_lines(links: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields a line for each group of equal links."""
  groups: dict[tuple[float, float], list[str]] = {}
  for link in links:
    key = link["bandwidth_bytes_per_us"], link["latency_us"]
    groups.setdefault(key, []).append(f"{link['src']} -> {link['dst']}")
  for (bandwidth, latency_us), names in groups.items():
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    yield (
      f"{names[0]}{more}: {format_bytes(bandwidth * 1e6)}/s,"
      f" {format_us(latency_us)} (described)"
    )


def measured_lines(about: Host, facts: Mapping[str, Any]) -> Iterator[str]:
  """Yields what planning would measure on this host."""
  cluster = facts.get("cluster")
  if cluster is None:
    return
  names = [device["name"] for device in cluster]
  if len(names) == 1:
    yield (
      f"cluster=None: {names[0]} is the only device, so models stay on it and"
      " nothing is measured"
    )
  else:
    yield (
      f"cluster=None: {', '.join(names)}; the step is measured on {names[0]}"
      " for a few seconds, links are described"
    )
  if facts.get("gpus"):
    yield "--cluster=gpus: op times and links of the GPUs are measured"
  yield (
    f"--cluster=workers:{max(_LEAST_CORES, about.cores)}: op times and links of"
    " local processes are measured"
  )


def findings_of(about: Host, facts: Mapping[str, Any]) -> Iterator[Finding]:
  """Yields what is wrong with cores, GPUs and Keras."""
  if about.cores < _LEAST_CORES:
    yield Finding(
      f"this process may use {about.cores} core, which search and workers"
      " share",
      "give it two or more (taskset, cgroup or container limits)",
      is_broken=False,
    )
  if facts.get("gpus") == []:
    yield from _missing_gpu(facts)
  backend, source = keras_backend(facts)
  if backend != _BACKEND:
    yield Finding(
      f"Keras runs on backend {backend!r} ({source}); only {_BACKEND!r} has"
      " placements",
      f"set KERAS_BACKEND={_BACKEND}, which counts before ~/.keras/keras.json",
    )
  legacy = os.environ.get("TF_USE_LEGACY_KERAS", "")
  if legacy.lower() in ("1", "true"):
    yield Finding(
      f"TF_USE_LEGACY_KERAS={legacy} makes tf.keras Keras 2, whose models"
      " cannot be placed",
      "unset it, or build models with `import keras`",
      is_broken=False,
    )


def keras_backend(facts: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the backend of Keras, and where it is set.

  An import of Keras, and of TensorFlow, fails if the backend is missing. So the
  settings count.
  """
  if os.environ.get("KERAS_BACKEND"):
    return os.environ["KERAS_BACKEND"], "KERAS_BACKEND"
  backend = graph_keys.keras_file().get("backend")
  if backend:
    return str(backend), "keras.json"
  return str(facts.get("backend", _BACKEND)), "as Keras says"


def _missing_gpu(facts: Mapping[str, Any]) -> Iterator[Finding]:
  """Yields a finding for a build for GPUs that sees none."""
  build = "CUDA" if facts.get("has_cuda") else "ROCm"
  if not (facts.get("has_cuda") or facts.get("has_rocm")):
    return
  driver = next((path for path in _DRIVERS if os.path.exists(path)), None)
  hidden = next((name for name in _HIDING if name in os.environ), None)
  problem = f"TensorFlow is a {build} build and sees no GPU"
  if hidden is not None:
    problem += f" ({hidden}={os.environ[hidden]!r} is set)"
  if driver is None:
    way_out = "nothing to do on a host without GPUs; otherwise install a driver"
  elif hidden is not None:
    way_out = f"unset {hidden} to use the GPUs of this host"
  else:
    problem += f", though {driver} says that this host has one"
    way_out = "pip install 'tensorflow[and-cuda]', and see that nvidia-smi runs"
  yield Finding(problem, way_out, is_broken=False)


def import_findings(
  report: Report, wanted: Mapping[str, str]
) -> Iterator[Finding]:
  """Yields libraries that cannot be imported, and the end of the child.

  Args:
    report: report of `checks.probe`.
    wanted: requirement, such as "numba>=0.61.2", of each installed library;
      empty if it is unknown which are installed.
  """
  is_other = keras_backend(report.facts)[0] != _BACKEND
  for key, error in report.facts.items():
    kind, _, name = key.partition(" ")
    # The backend is the cause, and has its own finding.
    is_known = is_other and name in ("tensorflow", "keras")
    is_known |= bool(wanted) and name not in wanted  # It is not installed.
    if kind == "import" and not is_known:
      yield Finding(
        f"{name} cannot be imported ({error})",
        f"pip install --force-reinstall '{wanted.get(name, name)}'",
      )
    elif kind == "error" and name:
      yield Finding(
        f"the check of {name} failed ({error})",
        "tfplace-doctor itself does not expect this; please report it",
      )
  if report.failure:
    name = report.stage.removeprefix("importing ")
    way_out = "the same happens to every program that does this; see above"
    if name in wanted:
      way_out = f"pip install --force-reinstall '{wanted[name]}'"
    yield Finding(
      f"the process that checks libraries and devices {report.failure} while"
      f" {report.stage}",
      way_out,
    )
