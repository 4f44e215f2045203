"""Explanation of a microbatched step: parallelism, bubble and limits."""

from tfplace.report.explain.microbatches.bubble import (
  MicrobatchReport,
  report_microbatches,
)
from tfplace.report.explain.microbatches.sentences import microbatch_sentences

__all__ = ["MicrobatchReport", "microbatch_sentences", "report_microbatches"]
