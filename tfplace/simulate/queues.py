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
from tfplace.simulate.workspace import EVENTS, STARTS, Queues, Workspace


@inlined
def clear(queues: Queues) -> None:
  """Empties all queues."""
  queues.head[:] = -1
  queues.root[:] = -1


@inlined
def is_empty(queues: Queues, queue: Index) -> bool:
  """Returns True if `queue` has no node."""
  return queues.head[queue] < 0 and queues.root[queue] < 0


@inlined
def push(queues: Queues, queue: Index, node: Index) -> None:
  """Adds a node whose time is at least that of all earlier nodes."""
  nodes = queues.nodes
  nodes[node].left = -1
  if queues.head[queue] < 0:
    queues.head[queue] = node
    queues.tail[queue] = node
    return
  last = np.int64(queues.tail[queue])
  if _is_before(nodes, node, last):
    nodes[node].right = -1
    root = np.int64(queues.root[queue])
    queues.root[queue] = _meld(nodes, root, node) if root >= 0 else node
  else:
    nodes[last].left = node
    queues.tail[queue] = node


@inlined
def first(queues: Queues, queue: Index) -> Index:
  """Returns the first node of a non-empty queue."""
  node, root = np.int64(queues.head[queue]), np.int64(queues.root[queue])
  if root >= 0 and (node < 0 or _is_before(queues.nodes, root, node)):
    return root
  return node


@inlined
def pop(queues: Queues, queue: Index) -> Index:
  """Removes and returns the first node of a non-empty queue."""
  nodes = queues.nodes
  node, root = first(queues, queue), np.int64(queues.root[queue])
  if node == root:
    left, right = np.int64(nodes[root].left), np.int64(nodes[root].right)
    queues.root[queue] = _meld(nodes, left, right)
    return root
  queues.head[queue] = nodes[node].left
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
  node = work.ops.nodes[op]
  node.pending -= 1
  if node.pending == 0:
    make_ready(tables, work, op, device, now)


@inlined
def make_ready(
  tables: Tables, work: Workspace, op: Index, device: Index, now: float
) -> None:
  """Queues an op on its device."""
  if tables.is_ranked:
    work.ops.nodes[op].time = 0.0
    work.ready_us[op] = now
  else:
    work.ops.nodes[op].time = now
  push(work.ops, device, op)
  _wake(work, device)


@inlined
def make_receive_ready(
  tables: Tables, work: Workspace, node: Index, device: Index, now: float
) -> None:
  """Queues a receive on its device."""
  work.ops.nodes[node].time = now
  queue = device + tables.num_devices if tables.is_ranked else device
  push(work.ops, queue, node)
  _wake(work, device)


@inlined
def is_idle(
  tables: Tables, work: Workspace, device: Index, costly: bool
) -> bool:
  """Returns True if no op or receive waits for a device."""
  nothing = is_empty(work.ops, device)
  if costly and tables.is_ranked:
    nothing &= is_empty(work.ops, device + tables.num_devices)
  return nothing


@inlined
def take(tables: Tables, work: Workspace, device: Index, costly: bool) -> Index:
  """Removes and returns the next op or receive of a free device.

  With ranks, the first op counts as ready from the later of its ready time and
  the end of the op before it, as if a control edge connected the two ops.
  Receives that arrived by then go first.
  """
  receives = device + tables.num_devices
  if costly and tables.is_ranked and not is_empty(work.ops, receives):
    if is_empty(work.ops, device):
      return pop(work.ops, receives)
    op = first(work.ops, device)
    since_us = max(work.ready_us[op], work.ended_us[device])
    if work.ops.nodes[first(work.ops, receives)].time <= since_us:
      return pop(work.ops, receives)
  return pop(work.ops, device)


@inlined
def _wake(work: Workspace, device: Index) -> None:
  if work.end_us[device] == np.inf:  # No op runs.
    will_start(work, device)


@inlined
def will_start(work: Workspace, device: Index) -> None:
  """Records when an idle device starts its waiting work."""
  start_us = work.free_us[device]
  work.start_us[device] = start_us
  work.due_us[STARTS] = min(work.due_us[STARTS], start_us)
