"""Features of Placeto's policy (NumPy only).

Features are those of the paper (arXiv 1906.08879). Its one-hot device is a flag
for the scored device, so that any number of devices works; device features are
GDP's.
"""

import dataclasses

import numpy as np

from tfplace.learned import Tensor, features
from tfplace.learned.decisions import Decisions
from tfplace.learned.policy_format import PolicyInputs

# Incremented when policies must be retrained.
VERSION = 100 * features.VERSION + 2
_MAX_SLOWER = 5.0

SIGNATURE: dict[str, Tensor] = {
  "node": ((None, None, 3), "float32"),
  "slower": ((None, None), "float32"),
  "device": ((None, features.DEVICE_FEATURES), "float32"),
  "feeds": ((None, None), "float32"),
  "ancestors": ((None, None), "float32"),
  "allowed": ((None, None), "bool"),
}
# States of B episodes: devices of all groups, and the group to re-place next.
# Groups before it are visited.
STATE: dict[str, Tensor] = {
  "placement": ((None, None), "int32"),
  "step": ((None,), "int32"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoFeatures(PolicyInputs):
  """Inputs that are constant during an episode; N groups, D devices.

  Attributes:
    node: [N, D, 3] float32 time on the fastest device, output bytes, and time
      on each device (0 where not allowed), each divided by its maximum.
    slower: [N, D] float32 log of the time relative to the fastest device, at
      most 5; 0 where not allowed.
    device: [D, DEVICE_FEATURES] float32.
    feeds: [N, N] float32, 1 where the column's group feeds the row's.
    ancestors: [N, N] float32, 1 where a path leads from the column's group to
      the row's. Paths use only edges in visiting order, because merged groups
      form cycles that would make all groups ancestors of each other.
    allowed: [N, D] bool.
  """

  node: np.ndarray
  slower: np.ndarray
  device: np.ndarray
  feeds: np.ndarray
  ancestors: np.ndarray
  allowed: np.ndarray


def extract(decisions: Decisions) -> PlacetoFeatures:
  """Extracts the constant features of a problem, in decision order."""
  graph, of = decisions.problem.graph, decisions.decision_of
  count, allowed = decisions.num_decisions, decisions.allowed
  on_us = np.where(allowed, decisions.time_us, 0.0)
  fastest = np.where(allowed, on_us, np.inf).min(axis=1, initial=np.inf)
  slower = np.log((on_us + 1e-9) / (fastest[:, None] + 1e-9))
  out_bytes = np.bincount(of, graph.op_output_bytes, count)
  alike = (_scaled(values)[:, None] for values in (fastest, out_bytes))
  node = [np.broadcast_to(x, on_us.shape) for x in (*alike, _scaled(on_us))]
  feeds = np.zeros((count, count), bool)
  feeds[of[graph.edge_dst], of[graph.edge_src]] = True
  np.fill_diagonal(feeds, False)
  ancestors = np.tril(feeds)
  # The rows of groups that feed it are complete.
  for group in range(count):
    ancestors[group] |= ancestors[ancestors[group]].any(axis=0)
  return PlacetoFeatures(
    node=np.stack(node, axis=-1).astype(np.float32),
    slower=np.where(allowed, slower.clip(0, _MAX_SLOWER), 0).astype(np.float32),
    device=features.extract(decisions).device,
    feeds=feeds.astype(np.float32),
    ancestors=ancestors.astype(np.float32),
    allowed=allowed,
  )


def _scaled(values: np.ndarray) -> np.ndarray:
  """Divides each column by its maximum."""
  most = values.max(axis=0, initial=0.0, keepdims=True)
  return values / np.where(most > 0, most, 1.0)
