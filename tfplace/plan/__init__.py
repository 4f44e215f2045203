"""Planning from a source and a cluster, used by commands and Keras.

`make_plan(source, config)` is the facade. Names are imported when first used.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.plan.config import PlanConfig, Stages
  from tfplace.plan.plan import Plan
  from tfplace.plan.planner import Source, make_plan
  from tfplace.plan.variants import StepVariant

__all__ = ["Plan", "PlanConfig", "Source", "Stages", "StepVariant", "make_plan"]

__getattr__ = lazy.exporter(
  __name__,
  {
    "Plan": "tfplace.plan.plan",
    "PlanConfig": "tfplace.plan.config",
    "Source": "tfplace.plan.planner",
    "Stages": "tfplace.plan.config",
    "StepVariant": "tfplace.plan.variants",
    "make_plan": "tfplace.plan.planner",
  },
)
