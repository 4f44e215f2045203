"""Measured kernels: rows, shapes and rates.

The data is not part of the project: fp32 kernels of the NeuSight artifact (MIT
license: Lee, Phanishayee, Mahajan, "Forecasting GPU Performance for Deep
Learning Training and Inference", ASPLOS 2025), and bfloat16 products that
`ai-dynamo/aiconfigurator` published (Apache 2.0). A row is a test row by the
hash of its text and of a salt, so that the split is the same everywhere; no
parameter is fitted to a test row.
"""

import csv
import gzip
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfplace.cost.kernels.convolution import Shapes
from tfplace.cost.kernels.rates import Limits, Rates, rates
from tfplace.hardware.gpu_hardware import GpuHardware, gpu_hardware
from tfplace.hardware.hardware import GPUS

_SALT = "tfplace-kernels-1"
_TEST_SHARE = 5  # one row in so many

BINARY = ("add", "mul", "div", "pow")
UNARY = ("addu", "mulu", "divu", "powu", "relu", "gelu", "tanh")
CLASSES = {
  "matmul": ("linear",),
  "batch_matmul": ("bmm",),
  "convolution": ("conv",),
  "elementwise": (*BINARY, *UNARY),
  "softmax": ("softmax",),
}
TENSOR = "tensor"  # class of the bfloat16 products
PRODUCTS = "gpu_gemm_bf16.csv.gz"  # beside the file of fp32 kernels


def _a100_pcie_80gb() -> GpuHardware:
  """Returns the 40 GB card with 1935 GB/s and 300 W (product brief)."""
  forty = GPUS["a100-pcie"].hardware
  changed = {**forty, "bandwidth": 1935000000, "power_watts": 300}
  return gpu_hardware("a100-pcie-80gb", changed)


# Name in the data -> data sheet.
HARDWARE = {
  **{
    name: gpu_hardware(name, GPUS[preset].hardware)
    for name, preset in (
      ("p4", "p4"),
      ("p100-pcie", "p100"),
      ("v100-pcie", "v100-pcie"),
      ("t4", "t4"),
      ("a100-pcie-40gb", "a100-pcie"),
      ("a100-sxm-80gb", "a100-80gb"),
      ("h100-sxm", "h100"),
      ("b200-sxm", "b200"),
    )
  },
  "a100-pcie-80gb": _a100_pcie_80gb(),
}
NAMES = tuple(HARDWARE)


class Rows(NamedTuple):
  """Kernels of one class.

  Attributes:
    op: [n] name in the data.
    gpu: [n] index into `NAMES`.
    dims: [n, num_dims] of the data.
    latency_us: [n] measured.
    is_test: [n] whether the row is kept for the test.
  """

  op: np.ndarray
  gpu: np.ndarray
  dims: np.ndarray
  latency_us: np.ndarray
  is_test: np.ndarray

  def part(self, chosen: np.ndarray) -> "Rows":
    """The chosen rows."""
    return Rows(*(field[chosen] for field in self))


def read(path: str) -> dict[str, Rows]:
  """Class -> its rows, of gpu_kernels.csv.gz and of `PRODUCTS` beside it."""
  class_of = {op: name for name, ops in CLASSES.items() for op in ops}
  found: dict[str, list] = {name: [] for name in (TENSOR, *CLASSES)}

  def add(name: str, op: str, gpu: str, dims: str, latency_us: str) -> None:
    text = f"{_SALT},{op},{gpu},{dims}"
    digest = hashlib.sha256(text.encode()).digest()
    found[name].append(
      (
        op,
        NAMES.index(gpu),
        [float(size) for size in dims.split("x")],
        float(latency_us),
        digest[0] % _TEST_SHARE == 0,
      )
    )

  file = pathlib.Path(path)
  for row in _rows_of(file):
    if row["op"] in class_of:
      add(class_of[row["op"]], **row)
  for row in _rows_of(file.with_name(PRODUCTS)):
    dims = f"1x{row['m']}x{row['n']}x{row['k']}"
    add(TENSOR, TENSOR, row["gpu"], dims, row["latency_us"])
  return {
    name: Rows(*(np.array(column) for column in zip(*rows, strict=True)))
    for name, rows in found.items()
  }


def _rows_of(file: pathlib.Path) -> Iterator[dict[str, str]]:
  with gzip.open(file, "rt", encoding="utf-8") as text:
    yield from csv.DictReader(text)


def rates_of(gpu: np.ndarray, limits: Limits, precision: str = "fp32") -> Rates:
  """Rates of each row's GPU: fields are [n] arrays."""
  each = [rates(each, precision, limits) for each in HARDWARE.values()]
  columns = zip(*each, strict=True)
  return Rates(*(np.array(column, float)[gpu] for column in columns))


def convolutions(dims: np.ndarray) -> Shapes:
  """Shapes of `B x size x Cin x Cout x k x stride x padding`."""
  batch, size, channels, filters, side, stride, padding = dims.T
  out = (size + 2 * padding - side) // stride + 1
  elements = batch * (size**2 * channels + out**2 * filters)
  return Shapes(
    batch, out, out, channels, filters, side, side, stride, elements
  )


def bytes_of(rows: Rows) -> np.ndarray:
  """[n] bytes that a memory-bound kernel reads and writes once."""
  tensors = np.where(np.isin(rows.op, BINARY), 3.0, 2.0)
  return rows.dims.prod(axis=1) * 4 * tensors


def sample(rows: Rows, most: int, seed: int) -> np.ndarray:
  """Indices of at most so many rows of each GPU and range of latency."""
  rng = np.random.default_rng(seed)
  edges_us = (0, 5, 20, 100, 1000, np.inf)
  chosen: Sequence[np.ndarray] = [
    rng.permutation(
      np.flatnonzero(
        (rows.gpu == gpu) & (rows.latency_us >= least) & (rows.latency_us < top)
      )
    )[:most]
    for gpu in np.unique(rows.gpu)
    for least, top in itertools.pairwise(edges_us)
  ]
  return np.concatenate(chosen)
