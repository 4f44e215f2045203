"""Two network interfaces joined by a wire of a given length.

`delaying_wire.py FD FD SECONDS`: what comes out of one TUN device goes into
the other so many seconds later, both ways. It stands in for `tc netem` where
the kernel lacks that.
"""

import collections
import contextlib
import os
import selectors
import sys
import time

_MAX_PACKET = 1 << 16


def main(one: int, other: int, delay_s: float) -> None:
  """Carries packets until it is killed."""
  queues = {one: collections.deque(), other: collections.deque()}
  across = {one: other, other: one}
  ends = selectors.DefaultSelector()  # numbers may be above 1,023
  for end in across:
    ends.register(end, selectors.EVENT_READ)
  while True:
    firsts = [queue[0][0] for queue in queues.values() if queue]
    left = max(0.0, min(firsts) - time.monotonic()) if firsts else None
    for key, _ in ends.select(left):
      packet = os.read(key.fd, _MAX_PACKET)
      queues[across[key.fd]].append((time.monotonic() + delay_s, packet))
    for end, queue in queues.items():
      while queue and queue[0][0] <= time.monotonic():
        with contextlib.suppress(OSError):  # an end that is down
          os.write(end, queue.popleft()[1])


if __name__ == "__main__":
  main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
