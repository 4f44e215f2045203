"""tfplace-doctor: tells whether this installation works, and what to do.

Shows devices, libraries and extras as tfplace sees them, and trains a small
placed model beside an unplaced one, in a child process, because an import may
end it. Exits with 1 if something that tfplace needs is broken.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import os
import pathlib
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import tfplace
from tfplace.errors import TfplaceError

if TYPE_CHECKING:
  import keras
  from absl import flags
  from packaging.requirements import Requirement

_TIMEOUT_S = 420.0  # A first start compiles for a minute.
_SAME = 1e-4  # Relative difference of losses, which float32 explains.
_MARK = "tfplace-doctor:"  # Starts a line of the child with a fact as JSON.
# TensorFlow comes after those that it needs, Keras after TensorFlow.
_LIBRARIES = ("numpy", "numba", "scipy", "pymetis", "tensorflow", "keras")
# Memory of each part of a single GPU in the self-test, enough to measure a card
# without a data sheet.
_PART_MB = 1024
_REPORT_IT = "tfplace-doctor does not expect this; please report it"


@dataclasses.dataclass(frozen=True)
class Finding:
  """A problem of this installation; a note if tfplace works all the same."""

  problem: str
  way_out: str
  is_broken: bool = True


# Result of a check: lines of text, the same as JSON, and findings.
Section = tuple[list[str], Any, list[Finding]]


# The child.


def examine(trains: bool) -> None:
  """Sends the parent what this process can import, see and train."""
  checks: list[tuple[str, Callable[[], Any]]] = [
    (f"importing {name}", functools.partial(importlib.import_module, name))
    for name in _LIBRARIES
  ]
  checks += [("looking for devices", _send_devices)]
  checks += [("training a placed model", _train)] if trains else []
  for what, check in checks:
    _send("stage", what)
    try:
      check()
    except Exception as error:
      text = " ".join(str(error).split())[:300]
      _send("failure", f"failed with {type(error).__name__}: {text}")
      return


def _send(key: str, value: Any) -> None:
  print(_MARK, json.dumps({key: value}), flush=True)


def _send_devices() -> None:
  import tensorflow as tf

  details = tf.config.experimental.get_device_details
  gpus = map(details, tf.config.list_physical_devices("GPU"))
  _send("gpus", [gpu.get("device_name", "GPU") for gpu in gpus])


def _train() -> None:
  """Trains a placed model on two GPUs, parts of one GPU, or logical CPUs."""
  import keras
  import numpy as np
  import tensorflow as tf

  # One of two unequal GPUs may lack TF32, and losses are compared.
  tf.config.experimental.enable_tensor_float_32_execution(False)
  gpus = tf.config.list_physical_devices("GPU")
  part = tf.config.LogicalDeviceConfiguration
  if len(gpus) > 1:
    tf.config.set_visible_devices(gpus[:2], "GPU")
  elif gpus:
    parts = [part(memory_limit=_PART_MB) for _ in range(2)]
    tf.config.set_logical_device_configuration(gpus[0], parts)
  else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [part(), part()])
  x = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
  y = x.sum(axis=1, keepdims=True)
  keras.utils.set_random_seed(0)
  plain, placed = _chain(), _chain()
  placed.set_weights(plain.get_weights())
  fit: Any = {"batch_size": len(x), "epochs": 3, "verbose": 0}
  _send("expected", plain.fit(x, y, **fit).history["loss"])
  options: Any = {"costs": "estimated", "verbose": 0}
  tfplace.place_model(placed, strategy="blocks", batch_size=len(x), **options)
  losses = placed.fit(x, y, **fit).history["loss"]
  plan: Any = placed.placement
  _send("devices", [d.rpartition("/device:")[2] for d in plan.devices])
  _send("losses", losses)


def _chain() -> "keras.Model":
  import keras

  sizes = [keras.layers.Dense(size) for size in (32, 32, 32, 1)]
  model = keras.Sequential([keras.Input((8,)), *sizes], name="doctor")
  model.compile(optimizer="sgd", loss="mse", jit_compile=False)
  return model


# The parent.


def _report(trains: bool) -> dict[str, Any]:
  """Runs the child; returns its facts, and how it ended as "failure"."""
  package = str(pathlib.Path(tfplace.__file__).parent.parent)
  # Folders of PYTHONPATH come first, as in this process.
  path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
  command = f"from tfplace.bin import doctor; doctor.examine({trains})"
  environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
  facts: dict[str, Any] = {"stage": "starting", "failure": ""}
  try:
    done: Any = subprocess.run(
      [sys.executable, "-c", command],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      env={**environment, "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
      timeout=_TIMEOUT_S,
      check=False,
    )
    if done.returncode < 0:
      end = signal.Signals(-done.returncode).name
      facts["failure"] = f"was ended by {end}"
    elif done.returncode > 0:
      facts["failure"] = f"ended with code {done.returncode}"
  except subprocess.TimeoutExpired as error:
    done, facts["failure"] = error, f"did not end within {_TIMEOUT_S:.0f} s"
  for line in (done.stdout or b"").decode(errors="replace").splitlines():
    # A child that dies may leave half a line.
    with contextlib.suppress(json.JSONDecodeError):
      if line.startswith(_MARK):
        facts |= json.loads(line.removeprefix(_MARK))
  return facts


def _libraries(facts: dict[str, Any]) -> Section:
  """Checks versions and imports against what the package asks for."""
  from packaging.requirements import Requirement

  lines, data, findings = [], {}, []
  lacking: dict[str, list[str]] = {}
  known = ["", *(metadata.metadata("tfplace").get_all("Provides-Extra") or ())]
  for wanted in map(Requirement, metadata.requires("tfplace") or ()):
    name, version = wanted.name, _version(wanted.name)
    marker, pip = wanted.marker, f"pip install '{name}{wanted.specifier}'"
    fits = (x for x in known if not marker or marker.evaluate({"extra": x}))
    extra = next(fits, None)
    if extra is None:  # it is for another version of Python
      continue
    if extra:
      names = lacking.setdefault(extra, [])
      if version is None:
        names.append(name)
      elif not _has_extras(wanted):
        names.append(f"{name}[{','.join(sorted(wanted.extras))}]")
      continue
    lines.append(f"{name:12} {version or 'missing':10} {wanted.specifier}")
    data[name] = version
    if version is None:
      findings.append(Finding(f"{name} is not installed", pip))
    elif not wanted.specifier.contains(version, prereleases=True):
      problem = f"{name} {version} is outside of {wanted.specifier}"
      findings.append(Finding(problem, pip))
    elif facts["failure"] and facts["stage"] == f"importing {name}":
      problem = f"{name} cannot be imported: the process {facts['failure']}"
      pip = pip.replace("install", "install --force-reinstall")
      findings.append(Finding(problem, pip))
  for extra, names in lacking.items():
    way_out = f"lacks {', '.join(names)}: pip install 'tfplace[{extra}]'"
    lines.append(f"extra {extra}: {way_out if names else 'installed'}")
  return lines, data, findings


def _has_extras(wanted: "Requirement") -> bool:
  """Returns whether what the extras of a package ask for is installed."""
  from packaging.requirements import Requirement

  try:
    asked = map(Requirement, metadata.requires(wanted.name) or ())
    return all(
      _version(each.name) is not None
      for each in asked
      for extra in wanted.extras
      if each.marker and each.marker.evaluate({"extra": extra})
    )
  except metadata.PackageNotFoundError:  # It has another name.
    return False


def _version(name: str) -> str | None:
  for candidate in (name, f"{name}-cpu"):  # As TensorFlow is called, too.
    with contextlib.suppress(metadata.PackageNotFoundError):
      return metadata.version(candidate)
  return None


def _devices(facts: dict[str, Any]) -> Section:
  """Shows processor and GPUs; checks GPUs and Keras' backend."""
  from tfplace.graph.quantities import format_bytes
  from tfplace.measure.local import host
  from tfplace.plan import graph_keys

  cores, gpus = len(os.sched_getaffinity(0)), facts.get("gpus", [])
  memory = format_bytes(host.memory_bytes())
  lines = [f"{host.cpu_name()}, {cores} cores, {memory}"]
  lines += [f"GPU {number}: {name}" for number, name in enumerate(gpus)]
  findings = []
  if not gpus and host.gpu_driver() is not None:
    findings.append(Finding(*host.why_no_gpu(), is_broken=False))
  threads = os.environ.get("TF_GPU_THREAD_MODE", "global")
  if len(gpus) > 1 and threads == "global":
    problem = f"{len(gpus)} GPUs share one pool of threads for their launches"
    way_out = "set TF_GPU_THREAD_MODE=gpu_private before TensorFlow starts"
    findings.append(Finding(problem, way_out, is_broken=False))
  named = os.environ.get("KERAS_BACKEND")
  backend = named or graph_keys.keras_settings().get("backend") or "tensorflow"
  if backend != "tensorflow":
    problem = f"Keras runs on backend {backend!r}; only 'tensorflow' is placed"
    way_out = "set KERAS_BACKEND=tensorflow, which goes before keras.json"
    findings.append(Finding(problem, way_out))
  data = {"cores": cores, "gpus": gpus, "backend": backend}
  return lines, data, findings


def _self_test(facts: dict[str, Any]) -> Section:
  """Compares the losses of the placed and of the unplaced model."""
  losses, expected = facts.get("losses", []), facts.get("expected", [])
  devices, wrong = facts.get("devices", []), ""
  if facts["failure"] or not losses:
    wrong = f"the process {facts['failure']} while {facts['stage']}"
  elif not all(
    map(functools.partial(math.isclose, rel_tol=_SAME), losses, expected)
  ):
    wrong = f"its losses are {losses} and not {expected}"
  elif len(devices) < 2:
    wrong = f"it was placed on {devices}, not on two devices"
  data = {"passed": not wrong, "devices": devices, "losses": losses}
  if wrong:
    problem = f"the placed step of the self-test failed: {wrong}"
    return [wrong], data, [Finding(problem, _REPORT_IT)]
  line = f"a model on {', '.join(devices)} has the losses of the unplaced one"
  return [line], data, []


def _main(values: "flags.FlagValues") -> None:
  from rich.text import Text

  from tfplace.bin import cli

  with cli.showing_progress("Examining this installation"):
    facts = _report(values.self_test)
  screen = cli.open_console()
  about = tfplace.__version__, platform.python_version(), platform.platform()
  screen.print("tfplace {}, Python {}, {}".format(*about), soft_wrap=True)
  findings: list[Finding] = []
  data: dict[str, Any] = dict(zip(("tfplace", "python"), about, strict=False))
  checks = (_devices, _libraries, _self_test)
  for check in checks if values.self_test else checks[:-1]:
    name = check.__name__[1:]
    try:
      lines, data[name], new = check(facts)
    except Exception as error:
      lines = []
      new = [Finding(f"{name}: {type(error).__name__}: {error}", _REPORT_IT)]
    if name == "self_test" and any(f.is_broken for f in findings):
      new = []  # A known cause is shown once.
    findings += new
    screen.print(Text(f"\n{name.capitalize()}", style="bold"))
    for line in lines:
      screen.print(Text(f"  {line}"), soft_wrap=True)
  screen.print(Text("\nFindings", style="bold"))
  for finding in findings:
    kind = "broken" if finding.is_broken else "note"
    text = f"  {kind}: {finding.problem}: {finding.way_out}"
    screen.print(Text(text), soft_wrap=True)
  broken = [finding.problem for finding in findings if finding.is_broken]
  if not broken:
    screen.print(Text("  All that tfplace needs works."))
  if values.json:
    data["findings"] = [dataclasses.asdict(finding) for finding in findings]
    print(json.dumps({"ok": not broken, **data}))
  if broken:
    raise TfplaceError(f"{len(broken)} broken: {'; '.join(broken)}")


def _define(values: "flags.FlagValues") -> None:
  from tfplace.bin import cli

  text = "Train a small placed model. The first time, this compiles."
  cli.define(values, "self_test", text, True)
  cli.define(values, "json", "Print all as JSON in the last line.", False)


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  try:
    from tfplace.bin import cli
  except Exception as error:  # A broken library raises anything on import.
    name = getattr(error, "name", None) or "a library"
    print(
      f"tfplace-doctor: error: 1 broken: {name} cannot be imported ({error}):"
      " pip install --force-reinstall tfplace",
      file=sys.stderr,
    )
    return 1
  return cli.command(__doc__, _define, _main)(argv)


if __name__ == "__main__":
  sys.exit(run())
