"""tfplace: device placement for TensorFlow.

Assigns each op to a device, so that a training step is as fast as the hardware
allows, fits in memory, and computes the same numbers. `__all__` lists the
public names; everything else is private. Names are imported when first used,
so that work without TensorFlow starts fast.
"""

from typing import TYPE_CHECKING

from tfplace import lazy
from tfplace.version import VERSION

if TYPE_CHECKING:
  from tfplace.errors import (
    ApplyError,
    ExtractionError,
    FormatError,
    InfeasibleError,
    MeasurementError,
    PlacementError,
    ProblemError,
    TfplaceError,
    TrainingError,
  )
  from tfplace.formats import (
    load_cluster,
    load_evaluation,
    load_graph,
    load_placement,
    save_cluster,
    save_estimate,
    save_graph,
  )
  from tfplace.graph import (
    Cluster,
    Device,
    Evaluation,
    Link,
    OpGraph,
    OpSpec,
    Placement,
    Problem,
    build_graph,
  )
  from tfplace.graph.evaluation import Result
  from tfplace.hardware.presets import cluster_preset
  from tfplace.keras import (
    PlacementCallback,
    place_model,
    placed,
    plan_model,
    split_gradients,
  )
  from tfplace.placers.place import place
  from tfplace.plan.estimate import estimate, largest_batch
  from tfplace.plan.plan import Plan
  from tfplace.plan.steps import extract
  from tfplace.simulate import Simulator

_HOMES = {
  "tfplace.keras": (
    "PlacementCallback",
    "place_model",
    "placed",
    "plan_model",
    "split_gradients",
  ),
  "tfplace.errors": (
    "ApplyError",
    "ExtractionError",
    "FormatError",
    "InfeasibleError",
    "MeasurementError",
    "PlacementError",
    "ProblemError",
    "TfplaceError",
    "TrainingError",
  ),
  "tfplace.plan.estimate": ("estimate", "largest_batch"),
  "tfplace.plan.plan": ("Plan",),
  "tfplace.plan.steps": ("extract",),
  "tfplace.graph": (
    "Cluster",
    "Device",
    "Evaluation",
    "Link",
    "OpGraph",
    "OpSpec",
    "Placement",
    "Problem",
    "build_graph",
  ),
  "tfplace.hardware.presets": ("cluster_preset",),
  "tfplace.formats": (
    "load_cluster",
    "load_evaluation",
    "load_graph",
    "load_placement",
    "save_cluster",
    "save_estimate",
    "save_graph",
  ),
  "tfplace.placers": ("Result", "place"),
  "tfplace.simulate": ("Simulator",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)
__version__ = VERSION

__getattr__ = lazy.exporter(__name__, _HOME_OF)


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
