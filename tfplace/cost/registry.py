"""Cost models by name, loaded only when asked for.

A new one is a module with a class that fills in `core.protocols.CostModel`,
and one line here.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from tfplace.core.protocols import CostModel
from tfplace.errors import TfplaceError

# Name -> "module:class"; the class is called with the options of
# `get_cost_model`.
COST_MODELS: Mapping[str, str] = {
  "grappler": "tfplace.cost.step_costs:GrapplerCosts",
  "kernels": "tfplace.cost.kernels.model:KernelCosts",
  "measured": "tfplace.cost.measured_costs:MeasuredCosts",
}
DEFAULT = "kernels"


def get_cost_model(name: str, **options: Any) -> CostModel:
  """The cost model of a name.

  Args:
    name: one of `COST_MODELS`.
    **options: of the model's own, such as `tensor_float_32` of "kernels".

  Raises:
    TfplaceError: unknown name.
  """
  if name not in COST_MODELS:
    raise TfplaceError(
      f"unknown cost model {name!r}; choose one of {', '.join(COST_MODELS)}"
    )
  module, model = COST_MODELS[name].split(":")
  return getattr(importlib.import_module(module), model)(**options)
