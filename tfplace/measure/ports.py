"""Free ports of loopback, held until a worker serves on them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

HOST = "127.0.0.1"


@contextmanager
def reserved(count: int) -> Iterator[list[int]]:
  """Distinct free ports that no other process is given meanwhile.

  Each is bound, not listened on, with SO_REUSEPORT: a worker of the same user
  that asks for the port by number, and for reuse, gets it without a race.
  """
  with ExitStack() as stack:
    ports = []
    for _ in range(count):
      holder = stack.enter_context(socket.socket())
      holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      holder.bind((HOST, 0))
      ports.append(holder.getsockname()[1])
    yield ports
