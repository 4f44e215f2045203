"""Priority queues of the kernel.

Ready ops are sorted by (ready time, position) or by rank, receives by (ready
time, producer's position, output), transfers by (queue time, slot,
destination), and events by time. Nodes arrive in order of time and mostly in
order of key, so a sorted linked list takes nearly all of them in constant time.
A node that does not belong at the list's end goes to a skew heap (Sleator and
Tarjan, 1986) in logarithmic amortized time.
"""

import numpy as np

from tfplace.simulate.jit import Index, helper, inlined
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import (
  END,
  ENDED,
  EVENTS,
  FREE,
  START,
  STARTS,
  Workspace,
)


@inlined
def is_empty(work: Workspace, queue: Index) -> bool:
  """Returns True if `queue` has no node."""
  return work.queues[queue].head < 0 and work.queues[queue].root < 0


@inlined
def push(work: Workspace, queue: Index, node: Index) -> None:
  """Adds a node whose time is at least that of all earlier nodes."""
  about, nodes = work.queues[queue], work.nodes
  nodes[node].left = -1
  if about.head < 0:
    about.head = node
    about.tail = node
    return
  last = np.int64(about.tail)
  if _is_before(nodes, node, last):
    nodes[node].right = -1
    about.root = _meld(nodes, np.int64(about.root), node)
  else:
    nodes[last].left = node
    about.tail = node


@inlined
def first(work: Workspace, queue: Index) -> Index:
  """Returns the first node of a non-empty queue."""
  about = work.queues[queue]
  node, root = np.int64(about.head), np.int64(about.root)
  if root >= 0 and (node < 0 or _is_before(work.nodes, root, node)):
    return root
  return node


@inlined
def pop(work: Workspace, queue: Index) -> Index:
  """Removes and returns the first node of a non-empty queue."""
  node, about = first(work, queue), work.queues[queue]
  left = np.int64(work.nodes[node].left)
  if node == about.root:
    about.root = _meld(work.nodes, left, np.int64(work.nodes[node].right))
  else:
    about.head = left
  return node


@inlined
def _is_before(nodes: np.ndarray, a: Index, b: Index) -> bool:
  if nodes[a].time != nodes[b].time:
    return nodes[a].time < nodes[b].time
  return nodes[a].key < nodes[b].key


@helper
def _meld(nodes: np.ndarray, a: Index, b: Index) -> Index:
  """Merges two skew heaps (-1 is empty) and returns the root."""
  if a < 0:
    return b
  if b < 0:
    return a
  if _is_before(nodes, b, a):
    a, b = b, a
  root = a
  while True:
    rest: Index = np.int64(nodes[a].right)
    nodes[a].right = nodes[a].left
    if rest < 0:
      nodes[a].left = b
      return root
    if _is_before(nodes, b, rest):
      rest, b = b, rest
    nodes[a].left = rest
    a = rest


@inlined
def push_event(work: Workspace, time: float, event: Index) -> None:
  """Adds an event to the binary heap."""
  times, ids = work.event_us, work.event_id
  i = work.counts[EVENTS]
  work.counts[EVENTS] = i + 1
  while i > 0:
    parent = (i - 1) >> 1
    if times[parent] <= time:
      break
    times[i], ids[i] = times[parent], ids[parent]
    i = parent
  times[i], ids[i] = time, event


@inlined
def pop_event(work: Workspace) -> Index:
  """Removes and returns the earliest event; the heap must not be empty."""
  times, ids = work.event_us, work.event_id
  result = np.int64(ids[0])
  size = work.counts[EVENTS] - 1
  work.counts[EVENTS] = size
  time, event = times[size], ids[size]
  i = 0
  while 2 * i + 1 < size:
    child = 2 * i + 1
    if child + 1 < size and times[child + 1] < times[child]:
      child += 1
    if times[child] >= time:
      break
    times[i], ids[i] = times[child], ids[child]
    i = child
  times[i], ids[i] = time, event
  return result


@inlined
def receive(
  tables: Tables, work: Workspace, op: Index, device: Index, now: float
) -> None:
  """Counts an arrived input of `op`; the last one makes it ready."""
  node = work.nodes[op]
  node.pending -= 1
  if node.pending == 0:
    make_ready(tables, work, op, device, now)


@inlined
def make_ready(
  tables: Tables, work: Workspace, op: Index, device: Index, now: float
) -> None:
  """Queues an op on its device."""
  if tables.is_ranked:
    work.nodes[op].time = 0.0
    work.ready_us[op] = now
  else:
    work.nodes[op].time = now
  push(work, device, op)
  _wake(work, device)


@inlined
def make_receive_ready(
  tables: Tables, work: Workspace, node: Index, device: Index, now: float
) -> None:
  """Queues a receive on its device."""
  work.nodes[node].time = now
  queue = device + tables.num_devices if tables.is_ranked else device
  push(work, queue, node)
  _wake(work, device)


@inlined
def is_idle(tables: Tables, work: Workspace, device: Index) -> bool:
  """Returns True if no op or receive waits for a device."""
  nothing = is_empty(work, device)
  if tables.has_message_costs is not None:
    nothing &= is_empty(work, device + tables.num_devices)
  return nothing


@inlined
def take(tables: Tables, work: Workspace, device: Index) -> Index:
  """Removes and returns the next op or receive of a free device.

  With ranks, the first op counts as ready from the later of its ready time and
  the end of the op before it, as if a control edge connected the two ops.
  Receives that arrived by then go first.
  """
  receives = device + tables.num_devices
  if tables.has_message_costs is None or is_empty(work, receives):
    return pop(work, device)
  if not is_empty(work, device):
    op = first(work, device)
    since_us = max(work.ready_us[op], work.devices[ENDED, device])
    if work.nodes[first(work, receives)].time > since_us:
      return pop(work, device)
  return pop(work, receives)


@inlined
def _wake(work: Workspace, device: Index) -> None:
  if work.devices[END, device] == np.inf:  # No op runs.
    will_start(work, device)


@inlined
def will_start(work: Workspace, device: Index) -> None:
  """Records when an idle device starts its waiting work."""
  start_us = work.devices[FREE, device]
  work.devices[START, device] = start_us
  work.sums[STARTS] = min(work.sums[STARTS], start_us)
