"""Analysis of the batch axis through a traced step, op by op.

A step can run in microbatches only if its forward pass treats the examples of a
batch independently. The analysis proves this by abstract interpretation: each
op keeps examples apart, reduces them in a way that adds up over microbatches,
or mixes them. Unknown ops count as mixing. The same Python code is traced at
two batch sizes; dimensions and constants that differ between the two graphs
depend on the number of examples.
"""

from tfplace.variants.microbatches.batch_axis.analysis import (
  follow,
  have_same_ops,
)

# Importing the rule modules fills the table of rules.
from tfplace.variants.microbatches.batch_axis import (  # isort: skip
  axes,
  control_flow,
  entries,
  lookups,
  sums,
)

__all__ = [
  "axes",
  "control_flow",
  "entries",
  "follow",
  "have_same_ops",
  "lookups",
  "sums",
]
