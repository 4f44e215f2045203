"""Fits the parameters of the cost model `kernels` to measured kernels.

Reads the measurements of `--data`, fits by SciPy and, for the thresholds at
which libraries change kernels, by LightGBM (the extra `fit`). `--write` writes
the package's JSON file. The table has the mean absolute percentage error of
each class: on test rows, and on each GPU in turn with that GPU left out of the
fit. The small kernels of the data have the time of a launch, which is no kernel
time: every class gets one such floor, and one time that the events around a
kernel add to it. Both stay in this file.

  python -m benchmarks.fit_kernel_costs --data=gpu_kernels.csv.gz --write
"""

import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from scipy.optimize import least_squares

from benchmarks import kernel_data, lib
from benchmarks.kernel_data import NAMES, Rows
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.cost.kernels import convolution, gemm, memory_bound, parameters
from tfplace.cost.kernels.convolution import ConvolutionParameters
from tfplace.cost.kernels.correction import Correction, Forest
from tfplace.cost.kernels.gemm import GemmParameters
from tfplace.cost.kernels.memory_bound import MemoryParameters
from tfplace.cost.kernels.rates import Limits
from tfplace.cost.kernels.tiles import TileParameters

OPTIONS = Options("fit_kernel_costs", __doc__)
OPTIONS.add("data", None, "gpu_kernels.csv.gz to fit to.")
OPTIONS.add("write", False, "Write the package's parameters.")
OPTIONS.add("leave_out", True, "Also fit without each GPU.")
OPTIONS.add("out", str(lib.RESULTS / "kernels.json"), "JSON file to write.")

_SEED = 0  # of samples and trees
_SAMPLE = 600  # rows per GPU of analytic fits
_LEAST_US = 60.0  # of a row that is fitted: below, it is a launch
_LARGE_US = 100.0  # of a row whose error is shown
_SCALE = 0.08  # of log errors: larger ones count less than their square
# Per row; of three values, the one with the least error on left-out GPUs.
_RIDGE = 1e-1
# Chosen by cross-validation on rows that may be fitted.
_FOREST = {
  "num_iterations": 200,
  "num_leaves": 31,
  "learning_rate": 0.08,
  "objective": "l1",
  "min_data_in_leaf": 50,
  "bagging_fraction": 0.8,
  "bagging_freq": 1,
  "feature_fraction": 0.5,
  "max_bin": 127,
  "num_threads": 1,
  "verbosity": -1,
}
# No kernel of the data determines these; docs/costs.md says how each was
# chosen.
CHOSEN = {
  "newer_gain": 3.0,
  "tensor_gain": 7.0,
  "newer_tensor_gain": 12.0,
  "kepler_share": 0.32,
  "tensor_share": 0.7,
}
DEPTHWISE_SHARE = 0.4
LATENCY_OF_ROWS_US = 4.0  # two dependent passes over a row; our choice

# Name, start, least and most of each parameter of the tiles.
_TILES = (
  ("fill_k", 30.0, 0.0, 300.0),
  ("blocks", 2.0, 1.0, 6.0),
  ("fill_power", 0.5, 0.0, 1.0),
  ("half_intensity", 4.0, 0.01, 100.0),
  ("unaligned", 0.95, 0.5, 1.0),
  ("unaligned_traffic", 0.3, 0.0, 4.0),
  ("l2_reuse", 1.0, 0.01, 100.0),
  ("overlap", 2.0, 1.0, 8.0),
  ("old_traffic", 0.3, 0.0, 5.0),
  ("split_us", 3.0, 0.0, 100.0),
)


@dataclasses.dataclass
class Fit:
  """A fitted class: what it predicts, with the floor of the measurement."""

  parameters: Any
  clock: "Clock"
  predict: Callable[[Rows], np.ndarray]


def _named(names: list[str], values: np.ndarray) -> dict[str, float]:
  """The first values by name."""
  return dict(zip(names, values[: len(names)], strict=True))


def solve(
  residuals: Callable[[np.ndarray], np.ndarray], bounds: list
) -> np.ndarray:
  """Robust least squares; each bound is start, least and most."""
  start, least, most = map(np.array, zip(*bounds, strict=True))
  return least_squares(
    residuals,
    start,
    bounds=(least, most),
    loss="soft_l1",
    f_scale=_SCALE,
    x_scale=np.maximum(np.abs(start), 0.1),
    diff_step=1e-3,
    max_nfev=40,
  ).x


class Clock(NamedTuple):
  """Time that measuring adds to a kernel.

  Attributes:
    floor_us: of launching it.
    event_us: between the events before and after it.
  """

  floor_us: float
  event_us: float

  def measured(self, time_us: np.ndarray) -> np.ndarray:
    """Returns the measured time of kernels that take this long."""
    return np.cbrt((time_us + self.event_us) ** 3 + self.floor_us**3)

  def kernel(self, measured_us: np.ndarray) -> np.ndarray:
    """The inverse, at least a fifth of the measured time."""
    cubed = measured_us**3 - self.floor_us**3
    return np.maximum(np.cbrt(cubed) - self.event_us, measured_us / 5)


_CLOCK = [(35.0, 5.0, 60.0), (5.0, 0.0, 15.0)]


def correct(
  features: np.ndarray, time_us: np.ndarray, measured_us: np.ndarray
) -> Correction:
  """Coefficients that make the mean absolute percentage error small.

  Reweighted least squares of log errors, with the weights of |p / m - 1|.
  """
  target = np.log(measured_us / time_us)
  weights = np.ones(len(target))
  ridge = _RIDGE * len(target) * np.eye(features.shape[1])
  for _ in range(15):
    weighted = features * weights[:, None]
    found = np.linalg.solve(weighted.T @ features + ridge, weighted.T @ target)
    error = features @ found - target
    weights = np.exp(np.clip(error, -1, 1) / 2) / np.maximum(abs(error), 0.03)
  return Correction([round(float(value), 5) for value in found])


def refine(
  quadratic: Correction,
  features: np.ndarray,
  details: np.ndarray,
  time_us: np.ndarray,
  measured_us: np.ndarray,
) -> Correction:
  """Adds a forest for what the quadratic form leaves of the log errors."""
  import lightgbm  # The extra `fit`.

  target = np.log(measured_us / time_us / quadratic.factor(features))
  settings = {**_FOREST, "seed": _SEED}
  model = lightgbm.train(settings, lightgbm.Dataset(details, target))
  trees = model.dump_model()["tree_info"]
  columns = zip(*(_tree(tree["tree_structure"]) for tree in trees), strict=True)
  return dataclasses.replace(quadratic, forest=Forest(*map(list, columns)))


def _tree(root: dict[str, Any]) -> tuple[list, list, list, list, list]:
  """Features, thresholds, children and values of one tree of LightGBM."""
  inner = [root]
  leaves: list[float] = []
  feature, threshold, left, right = [], [], [], []

  def number(child: dict[str, Any]) -> int:
    if "leaf_value" in child:
      leaves.append(float(f"{child['leaf_value']:.4g}"))
      return -len(leaves)
    inner.append(child)
    return len(inner) - 1

  for node in inner:  # grows as children are found
    feature.append(node["split_feature"])
    threshold.append(float(f"{node['threshold']:.6g}"))
    left.append(number(node["left_child"]))
    right.append(number(node["right_child"]))
  return feature, threshold, left, right, leaves


def fit_gemm(
  rows: Rows, shares: Limits, limits: Limits | None
) -> tuple[Fit, Limits]:
  """Products; fits what a joule computes, too, where no limits are given."""
  rows = rows.part(rows.latency_us > _LEAST_US)
  few = rows.part(kernel_data.sample(rows, _SAMPLE, _SEED))

  def parts(x: np.ndarray) -> tuple[Limits, TileParameters, Clock]:
    names = [name for name, *_ in _TILES]
    found = limits or dataclasses.replace(shares, flops_per_joule=x[-1])
    clock = Clock(*x[len(names) : len(names) + 2])
    return found, TileParameters(**_named(names, x)), clock

  def residuals(x: np.ndarray) -> np.ndarray:
    of_power, tiles, clock = parts(x)
    rates = kernel_data.rates_of(few.gpu, of_power)
    time_us = gemm.analytic_us(few.dims.T, rates, tiles)
    return np.log(clock.measured(time_us) / few.latency_us)

  bounds = [bound for _, *bound in _TILES] + _CLOCK
  bounds += [] if limits else [(62.0, 40.0, 90.0)]
  found, tiles, clock = parts(solve(residuals, bounds))
  rates = kernel_data.rates_of(rows.gpu, found)
  features = gemm.features(rows.dims.T, rates)
  times = (
    gemm.analytic_us(rows.dims.T, rates, tiles),
    clock.kernel(rows.latency_us),
  )
  details = gemm.details(rows.dims.T, rates)
  correction = refine(correct(features, *times), features, details, *times)
  fitted = GemmParameters(tiles, correction)

  def predict(of: Rows) -> np.ndarray:
    of_gpu = kernel_data.rates_of(of.gpu, found)
    return clock.measured(gemm.times_us(of.dims.T, of_gpu, fitted))

  return Fit(fitted, clock, predict), found


_CONVOLUTION = (
  *(b for b in _TILES if b[0] in ("fill_k", "blocks", "fill_power")),
  ("half_intensity", 8.0, 0.01, 100.0),
  ("overlap", 2.0, 1.0, 8.0),
  ("winograd_fill_k", 30.0, 0.0, 400.0),
  ("winograd_2", 0.8, 0.2, 1.5),
  ("winograd_4", 0.6, 0.2, 1.5),
  ("transform", 1.0, 0.1, 6.0),
)


def _convolution(values: dict[str, float]) -> ConvolutionParameters:
  tiles = {name: value for name, value, *_ in _TILES}
  tiles |= {name: values[name] for name in values if name in tiles}
  return ConvolutionParameters(
    TileParameters(**tiles),
    values["winograd_fill_k"],
    (values["winograd_2"], values["winograd_4"]),
    values["transform"],
    Correction([]),
  )


def fit_convolution(rows: Rows, limits: Limits) -> Fit:
  """3x3 convolutions of stride 1."""
  rows = rows.part(rows.latency_us > _LEAST_US)
  few = rows.part(kernel_data.sample(rows, _SAMPLE, _SEED))
  names = [name for name, *_ in _CONVOLUTION]
  shapes = kernel_data.convolutions(few.dims)
  of_few = kernel_data.rates_of(few.gpu, limits)

  def residuals(x: np.ndarray) -> np.ndarray:
    found = _convolution(_named(names, x))
    time_us = convolution.analytic_us(shapes, of_few, found)
    return np.log(Clock(*x[-2:]).measured(time_us) / few.latency_us)

  bounds = [bound for _, *bound in _CONVOLUTION] + _CLOCK
  x = solve(residuals, bounds)
  clock, fitted = Clock(*x[-2:]), _convolution(_named(names, x))
  every, rates = (
    kernel_data.convolutions(rows.dims),
    kernel_data.rates_of(rows.gpu, limits),
  )
  features = convolution.features(every, rates)
  times = (
    convolution.analytic_us(every, rates, fitted),
    clock.kernel(rows.latency_us),
  )
  details = convolution.details(every, rates)
  correction = refine(correct(features, *times), features, details, *times)
  fitted = dataclasses.replace(fitted, correction=correction)

  def predict(of: Rows) -> np.ndarray:
    of_gpu = kernel_data.rates_of(of.gpu, limits)
    shapes = kernel_data.convolutions(of.dims)
    time_us = convolution.three_by_three_us(shapes, of_gpu, fitted)
    return clock.measured(time_us)

  return Fit(fitted, clock, predict)


def fit_bandwidth(rows: Rows) -> tuple[Fit, Limits]:
  """Elementwise kernels, and the bandwidth that GPUs sustain."""
  few = rows.part(kernel_data.sample(rows, 4 * _SAMPLE, _SEED))
  memory = MemoryParameters(1.0, 0.0)

  def predicted(of: Rows, x: np.ndarray) -> np.ndarray:
    rates = kernel_data.rates_of(of.gpu, _limits(*x[:2]))
    num_bytes = kernel_data.bytes_of(of)
    time_us = memory_bound.analytic_us(num_bytes, rates, memory)
    return Clock(*x[2:]).measured(time_us)

  bounds = [(0.9, 0.6, 0.98), (0.75, 0.5, 0.98), *_CLOCK]
  x = solve(lambda x: np.log(predicted(few, x) / few.latency_us), bounds)
  fit = Fit(memory, Clock(*x[2:]), lambda of: predicted(of, x))
  return fit, _limits(*x[:2])


def _limits(share: float, old_share: float) -> Limits:
  return Limits(
    62.0, **CHOSEN, bandwidth_share=share, old_bandwidth_share=old_share
  )


def fit_rows(rows: Rows, limits: Limits) -> Fit:
  """Softmax or layer normalization."""

  def analytic(of: Rows, memory: MemoryParameters) -> np.ndarray:
    rates = kernel_data.rates_of(of.gpu, limits)
    return memory_bound.analytic_us(kernel_data.bytes_of(of), rates, memory)

  def residuals(x: np.ndarray) -> np.ndarray:
    time_us = analytic(rows, MemoryParameters(x[0], LATENCY_OF_ROWS_US))
    return np.log(Clock(*x[1:]).measured(time_us) / rows.latency_us)

  x = solve(residuals, [(0.7, 0.2, 1.0), *_CLOCK])
  memory, clock = MemoryParameters(x[0], LATENCY_OF_ROWS_US), Clock(*x[1:])
  large = rows.part(rows.latency_us > 1.3 * clock.floor_us)
  rates = kernel_data.rates_of(large.gpu, limits)
  correction = correct(
    memory_bound.features(large.dims.T, rates),
    analytic(large, memory),
    clock.kernel(large.latency_us),
  )
  fitted = dataclasses.replace(memory, correction=correction)

  def predict(of: Rows) -> np.ndarray:
    rates = kernel_data.rates_of(of.gpu, limits)
    time_us = memory_bound.times_us(
      kernel_data.bytes_of(of), of.dims.T, rates, fitted
    )
    return clock.measured(time_us)

  return Fit(fitted, clock, predict)


def fit_all(data: dict[str, Rows]) -> tuple[dict[str, Fit], Limits]:
  """Every class, from rows that may be fitted."""
  fits = {}
  fits["elementwise"], shares = fit_bandwidth(data["elementwise"])
  fits["matmul"], limits = fit_gemm(data["matmul"], shares, None)
  fits["batch_matmul"], _ = fit_gemm(data["batch_matmul"], shares, limits)
  fits["convolution"] = fit_convolution(data["convolution"], limits)
  for name in ("softmax", "layer_norm"):
    fits[name] = fit_rows(data[name], limits)
  return fits, limits


def errors(predicted_us: np.ndarray, rows: Rows) -> np.ndarray:
  """[n] absolute relative errors."""
  return np.abs(predicted_us / rows.latency_us - 1)


def in_distribution(
  fits: dict[str, Fit], data: dict[str, Rows]
) -> dict[str, dict[str, Any]]:
  """Class -> mean errors on test rows, of all and of 0.1 ms and more."""
  found = {}
  for name, rows in data.items():
    test = rows.part(rows.is_test)
    error = errors(fits[name].predict(test), test)
    large = test.latency_us >= _LARGE_US
    found[name] = {
      "rows": len(error),
      "all": mean(error),
      "large": mean(error[large]),
      "by_gpu": {
        gpu: mean(error[large & (test.gpu == i)])
        for i, gpu in enumerate(NAMES)
        if (test.gpu == i).any()
      },
    }
  return found


def mean(values: np.ndarray) -> float:
  return float(values.mean()) if len(values) else float("nan")


def left_out(data: dict[str, Rows]) -> dict[str, dict[str, float]]:
  """Class -> GPU -> error on its kernels of 0.1 ms and more, not fitted."""
  result: dict[str, dict[str, float]] = {name: {} for name in data}
  for i, gpu in enumerate(NAMES):
    print(f"without {gpu}", file=sys.stderr, flush=True)
    others = {n: r.part(~r.is_test & (r.gpu != i)) for n, r in data.items()}
    fits, _ = fit_all(others)
    for name, rows in data.items():
      of = rows.part((rows.gpu == i) & (rows.latency_us >= _LARGE_US))
      if len(of.op):
        result[name][gpu] = mean(errors(fits[name].predict(of), of))
  return result


def package(fits: dict[str, Fit], limits: Limits) -> dict[str, Any]:
  """The content of the package's file."""
  memory = {n: fits[n].parameters for n in ("elementwise", "softmax")}
  memory["layer_norm"] = fits["layer_norm"].parameters
  memory["depthwise"] = MemoryParameters(DEPTHWISE_SHARE, 0.0)
  fitted = parameters.KernelParameters(
    limits,
    fits["matmul"].parameters,
    fits["batch_matmul"].parameters,
    fits["convolution"].parameters,
    memory,
  )
  origin = {
    "data": "NeuSight artifact (Lee, Phanishayee, Mahajan, ASPLOS 2025; MIT"
    " license): kernels of P4, P100, V100, T4 and A100, PyTorch 2.1, CUDA 12.1,"
    " float32 without TF32",
    "fitted": "all but the parts below",
    "extrapolated": "limits.newer_gain, limits.tensor_gain,"
    " limits.newer_tensor_gain, limits.kepler_share, limits.tensor_share and"
    " memory.depthwise: no kernel of the data has them; docs/costs.md says what"
    " they were chosen by",
    "command": "python -m benchmarks.fit_kernel_costs --data=... --write",
  }
  return {"origin": origin, **_rounded(fitted.to_json())}


def _compact(text: str) -> str:
  """Puts each list of numbers on one line."""
  return re.sub(
    r"\[[-+.\de,\s]+\]", lambda found: re.sub(r"\s+", "", found[0]), text
  )


def _rounded(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _rounded(v) for key, v in value.items()}
  if isinstance(value, list | tuple):
    return [_rounded(v) for v in value]
  return float(f"{value:.5g}") if isinstance(value, float) else value


def main(values: flags.FlagValues) -> None:
  path = cli.required(values, "data")
  if importlib.util.find_spec("lightgbm") is None:
    raise cli.UsageError(
      "a fit needs the extra 'fit', and lightgbm is not installed: pip install"
      " -e '.[fit]'"
    )
  data = kernel_data.read(path)
  saved = lib.Rows(values.out, {}, seeds=[_SEED], policy=None)
  fits, limits = fit_all({n: r.part(~r.is_test) for n, r in data.items()})
  if values.write:
    text = _compact(json.dumps(package(fits, limits), indent=1)) + "\n"
    parameters.PATH.write_text(text, encoding="utf-8")
  without = left_out(data) if values.leave_out else {}
  for name, row in in_distribution(fits, data).items():
    clock = _rounded(fits[name].clock._asdict())
    others = without.get(name, {})
    saved.put(name, {**row, "left_out": others, "measurement": clock})
  print(tables(saved.found)["kernels"])


def tables(found: dict[str, Any]) -> dict[str, str]:
  """Returns the errors of each class in percent."""
  lines = []
  for name, row in found["rows"].items():
    without = [*row["left_out"].values()]
    median = float(np.median(without)) if without else float("nan")
    shown = (row["large"], median)
    cells = (f"{100 * error:.1f}%" for error in shown)
    lines.append([name.replace("_", " "), *cells])
  heads = ("class", "not fitted", "GPU left out")
  return {"kernels": f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"}


if __name__ == "__main__":
  OPTIONS.run(main)
