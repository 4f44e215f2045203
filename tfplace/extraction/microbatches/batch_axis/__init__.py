"""Follows the batch axis through a traced step, op by op.

A step can run in microbatches only if its forward pass treats the examples of a
batch independently. The analysis proves that: each op of the traced forward
pass either keeps examples apart, reduces them in a way that adds up over
microbatches, or mixes them. What it does not know counts as mixing.

The same Python code is traced at two batch sizes. Dimensions and constants that
differ between the two graphs depend on the number of examples.
"""

from tfplace.extraction.microbatches.batch_axis.analysis import (
  follow,
  have_same_ops,
)

# Importing the modules of rules fills the table of the analysis.
from tfplace.extraction.microbatches.batch_axis import (  # isort: skip
  control_flow,
  elementwise,
  layout,
  lookups,
  products,
  reductions,
)

__all__ = [
  "control_flow",
  "elementwise",
  "follow",
  "have_same_ops",
  "layout",
  "lookups",
  "products",
  "reductions",
]
