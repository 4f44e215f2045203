"""Fits the parameters of the cost model `kernels` to measured kernels.

Reads the measurements of `--data` and of the file of bfloat16 products beside
it, fits by SciPy and, for the thresholds at which libraries change kernels, by
LightGBM (the extra `fit`). `--write` writes the package's JSON file. The table
has the mean absolute percentage error of each class: on test rows, and on each
GPU in turn with that GPU left out of the fit. The small fp32 kernels have the
time of a launch, which is no kernel time: every class gets one such floor, and
one time that the events around a kernel add to it. Both stay in this file.

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
from benchmarks.kernel_data import NAMES, TENSOR, Rows
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.cost.kernels import convolution, gemm, parameters
from tfplace.cost.kernels.convolution import ConvolutionParameters
from tfplace.cost.kernels.correction import Forest
from tfplace.cost.kernels.gemm import GemmParameters
from tfplace.cost.kernels.rates import Limits, MemoryParameters, memory_us

OPTIONS = Options("fit_kernel_costs", __doc__)
OPTIONS.add("data", None, "gpu_kernels.csv.gz to fit to.")
OPTIONS.add("write", False, "Write the package's parameters.")
OPTIONS.add("leave_out", True, "Also fit without each GPU.")
OPTIONS.add("out", str(lib.RESULTS / "kernels.json"), "JSON file to write.")

_SEED = 0  # of samples and trees
_SAMPLE = 300  # rows per GPU and range of latency of analytic fits
_LEAST_US = 60.0  # of an fp32 row that is fitted: below, it is a launch
# Least latency of a row whose error is shown.
_LARGE_US = {TENSOR: 20.0}
_LARGE_FP32_US = 100.0
_SCALE = 0.08  # of log errors: larger ones count less than their square
# Chosen by cross-validation on rows that may be fitted. Products on tensor
# cores need few trees: more do not help on a GPU that was left out.
_FOREST = {
  "num_leaves": 31,
  "learning_rate": 0.1,
  "objective": "l1",
  "min_data_in_leaf": 50,
  "bagging_fraction": 0.8,
  "bagging_freq": 1,
  "feature_fraction": 0.5,
  "max_bin": 127,
  "num_threads": 1,
  "verbosity": -1,
}
_TREES = {TENSOR: 50, "matmul": 200, "batch_matmul": 200, "convolution": 200}
# No kernel of the data determines these; docs/costs.md says how each was
# chosen.
CHOSEN = {"newer_gain": 3.0, "tensor_gain": 7.0, "kepler_share": 0.32}
DEPTHWISE_SHARE = 0.4
LATENCY_OF_ROWS_US = 4.0  # two dependent passes over a row; our choice

# Start, least and most of each parameter.
_TILES = {
  "fill_k": (30.0, 0.0, 300.0),
  "half_intensity": (20.0, 0.0, 300.0),
  "overlap": (2.0, 1.0, 8.0),
  "split_us": (1.0, 0.0, 60.0),
  "l2_reuse": (1.0, 0.01, 100.0),
}
_FLOOR = (2.5, 0.0, 5.0)
_SHARES = {"tensor_share": (0.95, 0.5, 1.1), "tensor_slope": (0.15, 0.0, 0.4)}
_NO_FOREST = Forest(())
_OLD_TRAFFIC = (0.3, 0.0, 6.0)
_PER_JOULE = (62.0, 40.0, 90.0)


@dataclasses.dataclass
class Fit:
  """A fitted class: what it predicts, with the floor of the measurement."""

  parameters: Any
  clock: "Clock"
  predict: Callable[[Rows], np.ndarray]


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
_NO_CLOCK = Clock(0.0, 0.0)  # of kernels that were captured in a graph


def grow(
  name: str,
  details: np.ndarray,
  time_us: np.ndarray,
  measured_us: np.ndarray,
  gpu: np.ndarray,
) -> Forest:
  """Fits a forest to log errors; all GPUs weigh the same."""
  import lightgbm  # The extra `fit`.

  weight = 1 / np.bincount(gpu)[gpu]
  data = lightgbm.Dataset(
    details, np.log(measured_us / time_us), weight=weight / weight.mean()
  )
  settings = {**_FOREST, "seed": _SEED, "num_iterations": _TREES[name]}
  if name == TENSOR:
    settings["num_leaves"] = 15
  trees = lightgbm.train(settings, data).dump_model()["tree_info"]
  return Forest([_nested(tree["tree_structure"]) for tree in trees])


def _nested(node: dict[str, Any]) -> Any:
  """The nodes of a tree of LightGBM, as `Forest` has them."""
  if "leaf_value" in node:
    return round(node["leaf_value"] / Forest.UNIT)
  children = (_nested(node[f"{side}_child"]) for side in ("left", "right"))
  threshold = float(f"{node['threshold']:.4g}")
  return [node["split_feature"], threshold, *children]


def fit_products(
  name: str, rows: Rows, limits: Limits, floor_us: float | None = None
) -> tuple[Fit, Limits]:
  """Fits one class of products, and the limits that it determines.

  Args:
    floor_us: None where it is fitted, to products on tensor cores.
  """
  is_tensor = floor_us is None
  precision = "bf16" if is_tensor else "fp32"
  if not is_tensor:
    rows = rows.part(rows.latency_us > _LEAST_US)
  few = rows.part(kernel_data.sample(rows, _SAMPLE, _SEED))
  bounds = dict(_TILES)
  if is_tensor:
    bounds |= {"floor_us": _FLOOR, **_SHARES}
  else:
    bounds["old_traffic"] = _OLD_TRAFFIC
    if name == "matmul":
      bounds["flops_per_joule"] = _PER_JOULE
  known = {f.name for f in dataclasses.fields(Limits)}

  def parts(x: np.ndarray) -> tuple[Limits, GemmParameters, Clock]:
    values = dict(zip(bounds, x[: len(bounds)].tolist(), strict=True))
    of_card = {key: values.pop(key) for key in bounds if key in known}
    values = {"floor_us": floor_us, "old_traffic": 0.0, **values}
    tiles = GemmParameters(**values, forest=_NO_FOREST)
    clock = _NO_CLOCK if is_tensor else Clock(*x[len(bounds) :])
    return dataclasses.replace(limits, **of_card), tiles, clock

  def residuals(x: np.ndarray) -> np.ndarray:
    found, tiles, clock = parts(x)
    of_few = kernel_data.rates_of(few.gpu, found, precision)
    time_us = gemm.analytic_us(few.dims.T, of_few, tiles)
    return np.log(clock.measured(time_us) / few.latency_us)

  clocks = [] if is_tensor else _CLOCK
  found, tiles, clock = parts(solve(residuals, [*bounds.values(), *clocks]))
  rates = kernel_data.rates_of(rows.gpu, found, precision)
  forest = grow(
    name,
    gemm.details(rows.dims.T, rates),
    gemm.analytic_us(rows.dims.T, rates, tiles),
    clock.kernel(rows.latency_us),
    rows.gpu,
  )
  fitted = dataclasses.replace(tiles, forest=forest)

  def predict(of: Rows) -> np.ndarray:
    of_gpu = kernel_data.rates_of(of.gpu, found, precision)
    return clock.measured(gemm.times_us(of.dims.T, of_gpu, fitted))

  return Fit(fitted, clock, predict), found


_CONVOLUTION = {
  **{name: _TILES[name] for name in ("fill_k", "half_intensity", "overlap")},
  "winograd_fill_k": (30.0, 0.0, 400.0),
  "winograd_2": (0.8, 0.2, 1.5),
  "winograd_4": (0.6, 0.2, 1.5),
  "transform": (1.0, 0.1, 6.0),
}


def _convolution(x: np.ndarray) -> ConvolutionParameters:
  fill_k, half, overlap, winograd_fill_k, two, four, transform = x.tolist()
  return ConvolutionParameters(
    GemmParameters(
      fill_k,
      half,
      overlap,
      split_us=0.0,
      floor_us=0.0,
      l2_reuse=0.0,
      old_traffic=0.0,
      forest=_NO_FOREST,
    ),
    winograd_fill_k,
    (two, four),
    transform,
    _NO_FOREST,
  )


def fit_convolution(rows: Rows, limits: Limits) -> Fit:
  """3x3 convolutions of stride 1."""
  rows = rows.part(rows.latency_us > _LEAST_US)
  few = rows.part(kernel_data.sample(rows, _SAMPLE, _SEED))
  shapes = kernel_data.convolutions(few.dims)
  of_few = kernel_data.rates_of(few.gpu, limits)

  def residuals(x: np.ndarray) -> np.ndarray:
    time_us = convolution.analytic_us(shapes, of_few, _convolution(x[:-2]))
    return np.log(Clock(*x[-2:]).measured(time_us) / few.latency_us)

  x = solve(residuals, [*_CONVOLUTION.values(), *_CLOCK])
  clock, fitted = Clock(*x[-2:]), _convolution(x[:-2])
  every = kernel_data.convolutions(rows.dims)
  rates = kernel_data.rates_of(rows.gpu, limits)
  forest = grow(
    "convolution",
    convolution.details(every),
    convolution.analytic_us(every, rates, fitted),
    clock.kernel(rows.latency_us),
    rows.gpu,
  )
  fitted = dataclasses.replace(fitted, forest=forest)

  def predict(of: Rows) -> np.ndarray:
    of_gpu = kernel_data.rates_of(of.gpu, limits)
    shapes = kernel_data.convolutions(of.dims)
    time_us = convolution.three_by_three_us(shapes, of_gpu, fitted)
    return clock.measured(time_us)

  return Fit(fitted, clock, predict)


def fit_bandwidth(rows: Rows) -> tuple[Fit, Limits]:
  """Elementwise kernels, and the bandwidth that GPUs sustain."""
  few = rows.part(kernel_data.sample(rows, 2 * _SAMPLE, _SEED))
  memory = MemoryParameters(1.0, 0.0)

  def predicted(of: Rows, x: np.ndarray) -> np.ndarray:
    rates = kernel_data.rates_of(of.gpu, _limits(*x[:2]))
    num_bytes = kernel_data.bytes_of(of)
    time_us = memory_us(num_bytes, rates, memory)
    return Clock(*x[2:]).measured(time_us)

  bounds = [(0.9, 0.6, 0.98), (0.75, 0.5, 0.98), *_CLOCK]
  x = solve(lambda x: np.log(predicted(few, x) / few.latency_us), bounds)
  fit = Fit(memory, Clock(*x[2:]), lambda of: predicted(of, x))
  return fit, _limits(*x[:2])


def _limits(share: float, old_share: float) -> Limits:
  return Limits(
    flops_per_joule=_PER_JOULE[0],
    tensor_share=1.0,
    tensor_slope=0.0,
    bandwidth_share=share,
    old_bandwidth_share=old_share,
    **CHOSEN,
  )


def fit_rows(rows: Rows, limits: Limits) -> Fit:
  """Softmax."""

  def predicted(of: Rows, x: np.ndarray) -> np.ndarray:
    rates = kernel_data.rates_of(of.gpu, limits)
    memory = MemoryParameters(x[0], LATENCY_OF_ROWS_US)
    time_us = memory_us(kernel_data.bytes_of(of), rates, memory)
    return Clock(*x[1:]).measured(time_us)

  bounds = [(0.7, 0.2, 1.0), *_CLOCK]
  x = solve(lambda x: np.log(predicted(rows, x) / rows.latency_us), bounds)
  memory = MemoryParameters(x[0], LATENCY_OF_ROWS_US)
  return Fit(memory, Clock(*x[1:]), lambda of: predicted(of, x))


def fit_all(data: dict[str, Rows]) -> tuple[dict[str, Fit], Limits]:
  """Every class, or the first two, from rows that may be fitted."""
  fits = {}
  fits["elementwise"], limits = fit_bandwidth(data["elementwise"])
  fits[TENSOR], limits = fit_products(TENSOR, data[TENSOR], limits)
  if len(data) == 2:
    return fits, limits
  floor_us = fits[TENSOR].parameters.floor_us
  for name in ("matmul", "batch_matmul"):
    fits[name], limits = fit_products(name, data[name], limits, floor_us)
  fits["convolution"] = fit_convolution(data["convolution"], limits)
  fits["softmax"] = fit_rows(data["softmax"], limits)
  return fits, limits


def errors(predicted_us: np.ndarray, rows: Rows) -> np.ndarray:
  """[n] absolute relative errors."""
  return np.abs(predicted_us / rows.latency_us - 1)


def is_large(name: str, rows: Rows) -> np.ndarray:
  """[n] whether the error of a row is shown."""
  return rows.latency_us >= _LARGE_US.get(name, _LARGE_FP32_US)


def in_distribution(
  fits: dict[str, Fit], data: dict[str, Rows]
) -> dict[str, dict[str, Any]]:
  """Class -> mean errors on test rows, of all and of large ones."""
  found = {}
  for name, rows in data.items():
    test = rows.part(rows.is_test)
    error = errors(fits[name].predict(test), test)
    large = is_large(name, test)
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
  """Class -> GPU -> error on its large kernels, not fitted."""
  result: dict[str, dict[str, float]] = {name: {} for name in data}
  for i, gpu in enumerate(NAMES):
    print(f"without {gpu}", file=sys.stderr, flush=True)
    has_fp32 = i in data["elementwise"].gpu
    needed = data if has_fp32 else {n: data[n] for n in ("elementwise", TENSOR)}
    others = {n: r.part(~r.is_test & (r.gpu != i)) for n, r in needed.items()}
    fits, _ = fit_all(others)
    for name, rows in needed.items():
      of = rows.part((rows.gpu == i) & is_large(name, rows))
      if len(of.op):
        result[name][gpu] = mean(errors(fits[name].predict(of), of))
  return result


def package(fits: dict[str, Fit], limits: Limits) -> dict[str, Any]:
  """The content of the package's file."""
  memory = {n: fits[n].parameters for n in ("elementwise", "softmax")}
  memory["depthwise"] = MemoryParameters(DEPTHWISE_SHARE, 0.0)
  cards = (kernel_data.HARDWARE[name].architecture for name in NAMES)
  fitted = parameters.KernelParameters(
    tuple(sorted(set(cards))),
    limits,
    fits[TENSOR].parameters,
    fits["matmul"].parameters,
    fits["batch_matmul"].parameters,
    fits["convolution"].parameters,
    memory,
  )
  origin = {
    "data": "fp32: NeuSight artifact (Lee, Phanishayee, Mahajan, ASPLOS 2025;"
    " MIT license), kernels of P4, P100, V100, T4 and A100, PyTorch 2.1, CUDA"
    " 12.1, without TF32; tensor: ai-dynamo/aiconfigurator (Apache 2.0),"
    " bfloat16 products of A100, H100 and B200",
    "fitted": "all but the parts below",
    "extrapolated": f"limits.{', limits.'.join(CHOSEN)} and memory.depthwise:"
    " no kernel of the data has them; docs/costs.md says what they were chosen"
    " by",
    "command": "python -m benchmarks.fit_kernel_costs --data=... --write",
  }
  return {"origin": origin, **_rounded(fitted.to_json())}


def _compact(text: str) -> str:
  """Puts each list of numbers, nested or not, on one line."""
  return re.sub(
    r"\[[-+.\de,\s\[\]]+\]", lambda found: re.sub(r"\s+", "", found[0]), text
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
