"""Fitted parameters of the kernel classes: one JSON file of the package.

`python -m benchmarks.fit_kernel_costs` writes it. Its key "origin" says
which data each part was fitted to.
"""

import dataclasses
import functools
import json
import pathlib
import typing
from collections.abc import Mapping
from typing import Any

from tfplace.cost.kernels.convolution import ConvolutionParameters
from tfplace.cost.kernels.gemm import GemmParameters
from tfplace.cost.kernels.rates import Limits, MemoryParameters

PATH = pathlib.Path(__file__).with_name("parameters.json")


@dataclasses.dataclass(frozen=True)
class KernelParameters:
  """All that was fitted.

  Attributes:
    capabilities: compute capabilities of the GPUs whose kernels were fitted.
    limits: sustained rates.
    tensor: products on tensor cores.
    matmul: products of two matrices without them.
    batch_matmul: batches of products without them.
    convolution: 3x3 convolutions of stride 1, and what others share.
    memory: class of memory-bound kernels -> its parameters.
  """

  capabilities: tuple[float, ...]
  limits: Limits
  tensor: GemmParameters
  matmul: GemmParameters
  batch_matmul: GemmParameters
  convolution: ConvolutionParameters
  memory: Mapping[str, MemoryParameters]

  def to_json(self) -> dict[str, Any]:
    """Plain data that `from_json` reads."""
    return dataclasses.asdict(self)


def from_json(data: Mapping[str, Any]) -> KernelParameters:
  """The parameters of plain data."""
  return _built(KernelParameters, data)


def _built(hint: Any, data: Any) -> Any:
  """Builds a value of a field's type: a dataclass, or what its fields hold."""
  if dataclasses.is_dataclass(hint):
    hints = typing.get_type_hints(hint)
    names = [field.name for field in dataclasses.fields(hint)]
    fields = {name: _built(hints[name], data[name]) for name in names}
    return typing.cast(Any, hint)(**fields)
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  if origin is Mapping:
    return {name: _built(inner[1], value) for name, value in data.items()}
  return tuple(data) if origin is tuple else data


@functools.cache
def load() -> KernelParameters:
  """The parameters that ship."""
  return from_json(json.loads(PATH.read_text(encoding="utf-8")))
