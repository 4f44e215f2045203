"""What Placeto's policy sees of a problem: NumPy arrays, no TensorFlow.

The features are the paper's (arXiv 1906.08879): cost and output bytes of each
group, whether it was visited, whether it is the current one, when it starts
relative to the current one, and its device. Numbers are divided by the graph's
maximum. The paper's one-hot of the device ties a policy to a number of
devices; here the network scores one device at a time, and the one-hot becomes
one flag, "on the device that is scored", beside the group's cost there. The
scored device's own features are those of `features.Features.device`.
"""

import dataclasses

import numpy as np

from tfplace.policies import features
from tfplace.policies.decisions import Decisions
from tfplace.policies.policy_inputs import PolicyInputs

# Of a policy: changes whenever it must be trained again.
VERSION = 100 * features.VERSION + 1
NODE_FEATURES = 2
DEVICE_FEATURES = features.DEVICE_FEATURES
MAX_SLOWER = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoFeatures(PolicyInputs):
  """What does not change in an episode. N groups, D devices.

  Attributes:
    node: [N, NODE_FEATURES] float32: time on the fastest device, output bytes,
      each divided by the graph's maximum.
    on_device: [N, D] float32: time on each device, divided by that device's
      maximum; 0 where not allowed.
    slower: [N, D] float32: logarithm of a group's time on a device over that
      on its fastest, at most MAX_SLOWER; 0 where not allowed.
    device: [D, DEVICE_FEATURES] float32.
    feeds: [N, N] float32: 1 where the column's group feeds the row's.
    ancestors: [N, N] float32: 1 where a path leads from the column's group to
      the row's. Groups that were merged feed each other in cycles (the forward
      and the backward op of a variable are one group), so that all would be
      ancestors of all; here an edge against the visiting order is no step of
      a path.
    allowed: [N, D] bool.
  """

  node: np.ndarray
  on_device: np.ndarray
  slower: np.ndarray
  device: np.ndarray
  feeds: np.ndarray
  ancestors: np.ndarray
  allowed: np.ndarray


def extract(decisions: Decisions) -> PlacetoFeatures:
  """The constant features of a problem, in the order of its decisions."""
  graph, of = decisions.problem.graph, decisions.decision_of
  count, allowed = decisions.num_decisions, decisions.allowed
  on_us = np.stack(
    [
      np.bincount(of, np.nan_to_num(column), count)
      for column in decisions.problem.time_us.T
    ],
    axis=1,
  )
  on_us = np.where(allowed, on_us, 0.0)
  fastest = np.where(allowed, on_us, np.inf).min(axis=1, initial=np.inf)
  slower = np.log((on_us + 1e-9) / (fastest[:, None] + 1e-9))
  out_bytes = np.bincount(of, graph.op_output_bytes, count)
  feeds = np.zeros((count, count), bool)
  src, dst = of[graph.edge_src], of[graph.edge_dst]
  feeds[dst[src != dst], src[src != dst]] = True
  return PlacetoFeatures(
    node=np.stack((_scaled(fastest), _scaled(out_bytes)), axis=1),
    on_device=_scaled(on_us),
    slower=np.where(allowed, slower.clip(0, MAX_SLOWER), 0).astype(np.float32),
    device=features.extract(decisions).device,
    feeds=feeds.astype(np.float32),
    ancestors=_closure(np.tril(feeds, -1)).astype(np.float32),
    allowed=allowed,
  )


def _scaled(values: np.ndarray) -> np.ndarray:
  """Values, each column divided by its maximum; float32."""
  most = values.max(axis=0, initial=0.0, keepdims=True)
  return (values / np.where(most > 0, most, 1.0)).astype(np.float32)


def _closure(feeds: np.ndarray) -> np.ndarray:
  """[N, N] bool: which groups reach a group, of edges in visiting order."""
  reached = feeds.copy()
  for group in range(len(reached)):  # those that feed it are complete
    reached[group] |= reached[feeds[group]].any(axis=0)
  return reached
