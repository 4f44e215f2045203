"""Devices of two machines that are really this one, some delay apart.

Each worker is in a network namespace of its own, and what one sends the other
takes the delay each way, as the tests of several hosts do it. It needs root,
`ip`, and `tc netem` or TUN devices.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfplace.errors import MeasurementError

if TYPE_CHECKING:
  from tfplace.measure import OpenCluster


@contextlib.contextmanager
def opened(delay_s: float) -> "Iterator[OpenCluster]":
  """Two workers of one thread, seen from the first one's machine.

  Args:
    delay_s: seconds each way.

  Raises:
    MeasurementError: this machine cannot pretend to be two, or the workers
      cannot be used.
  """
  from tests.testing.served_workers import serving, write_hosts
  from tests.testing.two_machines import ADDRESSES, Unavailable, two_machines
  from tfplace.measure import open_cluster

  with contextlib.ExitStack() as stack:
    try:
      machines = stack.enter_context(two_machines())
      machines.lengthen(delay_s)
    except Unavailable as error:
      raise MeasurementError(f"--delay_s={delay_s}: {error}") from error
    binds = [f"{address}:0" for address in ADDRESSES]
    prefixes = [machines.command_prefix(i) for i in range(len(binds))]
    one, other = stack.enter_context(serving(binds, prefixes))
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    addresses = {"one": one.address, "other": other.address}
    path = write_hosts(pathlib.Path(folder) / "hosts.json", addresses)
    stack.enter_context(machines.on(0))
    yield stack.enter_context(open_cluster(path))
