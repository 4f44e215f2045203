"""The registry of cost models; models are imported on first use.

A cost model takes one line: the "module:class" of a `CostModel`.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from tfplace.errors import TfplaceError
from tfplace.graph.protocols import CostModel

COST_MODELS: Mapping[str, str] = {
  "grappler": "tfplace.cost.step_costs:GrapplerCosts",
  "kernels": "tfplace.cost.kernels.model:KernelCosts",
}
DEFAULT = "kernels"


def get_cost_model(name: str, **options: Any) -> CostModel:
  """Creates a cost model.

  Args:
    name: one of `COST_MODELS`.
    **options: options of the model, such as `tensor_float_32` of "kernels".

  Raises:
    TfplaceError: the name is unknown.
  """
  if name not in COST_MODELS:
    raise TfplaceError(
      f"unknown cost model {name!r}; choose one of {', '.join(COST_MODELS)}"
    )
  module, model = COST_MODELS[name].split(":")
  return getattr(importlib.import_module(module), model)(**options)
