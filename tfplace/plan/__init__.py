"""Planning from a source and a cluster, used by commands and Keras.

`make_plan(steps, config)` is the facade. Names are imported when first used.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.plan.config import PlanConfig
  from tfplace.plan.plan import Plan
  from tfplace.plan.planner import make_plan
  from tfplace.plan.stages import Stages
  from tfplace.plan.steps import Steps
  from tfplace.plan.variants import StepVariant

__all__ = ["Plan", "PlanConfig", "Stages", "StepVariant", "Steps", "make_plan"]

__getattr__ = lazy.exporter(
  __name__,
  {
    "Plan": "tfplace.plan.plan",
    "PlanConfig": "tfplace.plan.config",
    "Stages": "tfplace.plan.stages",
    "StepVariant": "tfplace.plan.variants",
    "Steps": "tfplace.plan.steps",
    "make_plan": "tfplace.plan.planner",
  },
)
