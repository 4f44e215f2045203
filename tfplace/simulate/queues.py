"""The priority queues of the kernel, and how ops become ready.

Ready ops are queued by (ready time, position), receives before them by (ready
time, producer's position, output), transfers by (queue time, slot
and destination), events by time. Where ops go by rank, they are queued by rank,
and receives apart. Nodes are pushed in order of time, and mostly
in order of key, so that a linked list that is kept sorted takes nearly all of
them in constant time; a node that would not go at its end goes into a skew heap
(Sleator and Tarjan, 1986) beside it, in logarithmic amortized time.
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
  """Whether `queue` has no node."""
  return queues.head[queue] < 0 and queues.root[queue] < 0


@inlined
def push(queues: Queues, queue: Index, node: Index) -> None:
  """Adds `node`, whose time is no less than that of any node before."""
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
  """The first node of a queue that is not empty."""
  node, root = np.int64(queues.head[queue]), np.int64(queues.root[queue])
  if root >= 0 and (node < 0 or _is_before(queues.nodes, root, node)):
    return root
  return node


@inlined
def pop(queues: Queues, queue: Index) -> Index:
  """Removes and returns the first node of a queue that is not empty."""
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
  """Joins two skew heaps, -1 being an empty one, and returns the root."""
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
  """Adds to the binary heap of events."""
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
  """Removes and returns the earliest event; there is one."""
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
  """An input of `op` is there; the last one makes it ready."""
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
  """Whether nothing waits for a device."""
  nothing = is_empty(work.ops, device)
  if costly and tables.is_ranked:
    nothing &= is_empty(work.ops, device + tables.num_devices)
  return nothing


@inlined
def take(tables: Tables, work: Workspace, device: Index, costly: bool) -> Index:
  """Removes and returns what a free device runs next; something waits.

  Where ops go by rank, the first op counts as ready since the op before it has
  ended, or since it became ready after that, and receives that have arrived by
  then go before it: as if a control edge led from the one op to the other.
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
  """Has an idle device start what waits for it."""
  if work.end_us[device] == np.inf:  # nothing runs there
    will_start(work, device)


@inlined
def will_start(work: Workspace, device: Index) -> None:
  """Notes when an idle device starts what waits for it."""
  start_us = work.free_us[device]
  work.start_us[device] = start_us
  work.due_us[STARTS] = min(work.due_us[STARTS], start_us)
