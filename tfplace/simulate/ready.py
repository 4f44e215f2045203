"""How ops become ready: the step of the kernel that devices and channels
share.
"""

import numpy as np

from tfplace.simulate import queues
from tfplace.simulate.jit import Index, inlined
from tfplace.simulate.workspace import STARTS, Workspace


@inlined
def receive(work: Workspace, op: Index, device: Index, now: float) -> None:
  """An input of `op` is there; the last one makes it ready."""
  node = work.ops.nodes[op]
  node.pending -= 1
  if node.pending == 0:
    make_ready(work, op, device, now)


@inlined
def make_ready(work: Workspace, op: Index, device: Index, now: float) -> None:
  """Queues an op on its device."""
  work.ops.nodes[op].time = now
  queues.push(work.ops, device, op)
  if work.end_us[device] == np.inf:  # nothing runs there
    will_start(work, device)


@inlined
def will_start(work: Workspace, device: Index) -> None:
  """Notes when an idle device starts what waits for it."""
  start_us = work.free_us[device]
  work.start_us[device] = start_us
  work.due_us[STARTS] = min(work.due_us[STARTS], start_us)
