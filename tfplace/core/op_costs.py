"""Costs of the ops of a step, as a cost model returns them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.core.op_graph import OpGraph


@dataclasses.dataclass(frozen=True)
class OpCosts:
  """Costs of the ops of a step, as given by a cost model.

  Attributes:
    time_us: device kind -> [num_ops] float64 microseconds; ignored for kinds
      without a kernel for the op.
    temp_bytes: [num_ops] float64 held while an op runs; None keeps those of the
      graph.
    extra: keys for `OpGraph.extra`, such as the ops with guessed costs.
    peak_us: as `OpGraph.peak_us`; None keeps that of the graph.
  """

  time_us: Mapping[str, np.ndarray]
  temp_bytes: np.ndarray | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  peak_us: Mapping[str, np.ndarray] | None = None

  def fill(self, graph: OpGraph) -> OpGraph:
    """Returns the graph with these costs wherever its `time_us` is not NaN."""
    time_us = {
      kind: np.where(np.isnan(before), np.nan, self.time_us[kind])
      for kind, before in graph.time_us.items()
    }
    temp_bytes = (
      graph.temp_bytes if self.temp_bytes is None else self.temp_bytes
    )
    return dataclasses.replace(
      graph,
      time_us=time_us,
      temp_bytes=temp_bytes,
      peak_us=graph.peak_us if self.peak_us is None else self.peak_us,
    )
