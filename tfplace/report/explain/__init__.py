"""Why a placement takes as long as it does, and what would change that."""

from tfplace.report.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
