"""Estimate files (`tfplace.estimate.v1`)."""

from typing import Any

from tfplace.core.estimate import Estimate
from tfplace.formats import codec, json_file

ESTIMATE = "tfplace.estimate.v1"


def load_estimate(path: json_file.Path) -> Estimate:
  """Reads an estimate; a FormatError names the file, element and value."""
  data = json_file.read_json(path, ESTIMATE)
  with json_file.errors_naming(path):
    return codec.from_json(Estimate, data, "estimate")


def save_estimate(estimate: Estimate, path: json_file.Path) -> None:
  """Writes an estimate atomically; raises FormatError if it cannot."""
  json_file.write_json(path, estimate_to_json(estimate))


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
  """Converts an estimate to JSON; unlimited memory becomes null."""
  return {"format": ESTIMATE, **codec.to_json(estimate)}
