"""Fitted parameters of the kernel classes: one JSON file of the package.

`python -m benchmarks.fit_kernel_costs` writes it. Its key "origin" says
which data each part was fitted to.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from tfplace.cost.kernels.convolution import ConvolutionParameters
from tfplace.cost.kernels.correction import Correction
from tfplace.cost.kernels.forest import Forest
from tfplace.cost.kernels.gemm import GemmParameters
from tfplace.cost.kernels.memory_bound import MemoryParameters
from tfplace.cost.kernels.rates import Limits
from tfplace.cost.kernels.tiles import TileParameters

PATH = pathlib.Path(__file__).with_name("parameters.json")


@dataclasses.dataclass(frozen=True)
class KernelParameters:
  """All that was fitted.

  Attributes:
    limits: sustained rates.
    matmul: products of two matrices.
    batch_matmul: batches of products.
    convolution: 3x3 convolutions of stride 1, and what others share.
    memory: class of memory-bound kernels -> its parameters.
  """

  limits: Limits
  matmul: GemmParameters
  batch_matmul: GemmParameters
  convolution: ConvolutionParameters
  memory: Mapping[str, MemoryParameters]

  def to_json(self) -> dict[str, Any]:
    """Plain data that `from_json` reads."""
    return dataclasses.asdict(self)


def from_json(data: Mapping[str, Any]) -> KernelParameters:
  """The parameters of plain data."""
  memory = {
    name: MemoryParameters(
      values["share"],
      values["latency_us"],
      _correction(values["correction"]) if values["correction"] else None,
    )
    for name, values in data["memory"].items()
  }
  convolution = {**data["convolution"]}
  convolution["tiles"] = TileParameters(**convolution["tiles"])
  convolution["winograd_share"] = tuple(convolution["winograd_share"])
  convolution["correction"] = _correction(convolution["correction"])
  return KernelParameters(
    Limits(**data["limits"]),
    _gemm(data["matmul"]),
    _gemm(data["batch_matmul"]),
    ConvolutionParameters(**convolution),
    memory,
  )


@functools.cache
def load() -> KernelParameters:
  """The parameters that ship."""
  return from_json(json.loads(PATH.read_text(encoding="utf-8")))


@functools.cache
def version() -> str:
  """A digest that changes with the parameters."""
  return hashlib.sha256(PATH.read_bytes()).hexdigest()[:12]


def _gemm(data: Mapping[str, Any]) -> GemmParameters:
  return GemmParameters(
    TileParameters(**data["tiles"]), _correction(data["correction"])
  )


def _correction(data: Mapping[str, Any]) -> Correction:
  forest = data.get("forest")
  return Correction(
    data["coefficients"], None if forest is None else Forest(**forest)
  )
