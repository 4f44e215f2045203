"""Explanation of a microbatched step: parallelism, bubble and limits."""

from tfplace.report.explain.microbatches.bubble import (
  MicrobatchReport,
  report_microbatches,
)
from tfplace.report.explain.microbatches.parallelism import find_device_layers
from tfplace.report.explain.microbatches.sentences import (
  in_blocks,
  microbatch_sentences,
)

__all__ = [
  "MicrobatchReport",
  "find_device_layers",
  "in_blocks",
  "microbatch_sentences",
  "report_microbatches",
]
