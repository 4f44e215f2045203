"""`tfplace.hosts.v1`: TensorFlow workers on several machines, as a file.

    {"format": "tfplace.hosts.v1", "name": "lab",
     "workers": [{"address": "10.0.0.1:2222", "name": "a", "kind": "old"},
                 ...]}

An address is host:port (an IPv6 host in brackets) as every one of the
machines reaches it. A name is for people; the address stands in where it is
left out. Devices of one kind are taken to be equally fast, so the machines
that are not like the others say a kind of their own: "old" makes a worker's
devices "CPU-old" and "GPU-old", and each kind is profiled.
"""

import dataclasses
from typing import Any

from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

FORMAT = "tfplace.hosts.v1"
MAX_WORKERS = 256


@dataclasses.dataclass(frozen=True)
class Worker:
  """One worker.

  Attributes:
    address: host:port.
    name: what messages call it.
    kind: what sets its machine apart from others, or "".
  """

  address: str
  name: str
  kind: str = ""

  @property
  def host(self) -> str:
    """The host of the address, without brackets."""
    return split_address(self.address)[0]

  @property
  def port(self) -> int:
    return split_address(self.address)[1]

  def __str__(self) -> str:
    if self.name == self.address:
      return f"worker {self.address}"
    return f"worker {self.name!r} at {self.address}"


@dataclasses.dataclass(frozen=True)
class Hosts:
  """The workers of a file; the first also runs the sessions."""

  name: str
  workers: tuple[Worker, ...]


def is_hosts_file(path: str) -> bool:
  """Whether a file is one of this format (it may still be wrong inside)."""
  if not path.endswith((".json", ".json.gz")):
    return False
  try:
    json_file.read_json(path, FORMAT)
  except FormatError:
    return False
  return True


def load_hosts(path: json_file.Path) -> Hosts:
  """Reads a hosts file.

  Raises:
    FormatError: names the file, the element and the value.
  """
  data = json_file.read_json(path, FORMAT)
  with json_file.errors_naming(path):
    name = json_file.as_name(json_file.required(data, "name", "hosts"), "name")
    raw = json_file.required(data, "workers", "hosts")
    workers = json_file.as_list(raw, "workers")
    if not 1 <= len(workers) <= MAX_WORKERS:
      raise FormatError(
        f"workers: {len(workers)} elements; from 1 to {MAX_WORKERS}"
      )
    found = [_worker(w, f"workers[{i}]") for i, w in enumerate(workers)]
    _check_different([w.address for w in found], "address")
    _check_different([w.name for w in found], "name")
    return Hosts(name, tuple(found))


def _worker(raw: Any, where: str) -> Worker:
  worker = json_file.as_object(raw, where)
  address = json_file.as_name(
    json_file.required(worker, "address", where), f"{where}: address"
  )
  with json_file.errors_naming(f"{where}: address"):
    split_address(address)
  name = json_file.as_name(worker.get("name", address), f"{where}: name")
  kind = worker.get("kind", "")
  if kind:
    kind = json_file.as_name(kind, f"{where}: kind")
  return Worker(address, name, kind)


def _check_different(values: list[str], what: str) -> None:
  for i, value in enumerate(values):
    if value in values[:i]:
      raise FormatError(f"workers[{i}]: {what} {shown(value)} is there twice")


def split_address(address: str, any_port: bool = False) -> tuple[str, int]:
  """Host and port of "host:port"; with `any_port` the port may be 0.

  Raises:
    FormatError: it is not of that form.
  """
  host, colon, port = address.rpartition(":")
  bracketed = host.startswith("[") and host.endswith("]")
  bare = host[1:-1] if bracketed else host
  digits = port.isascii() and port.isdigit() and len(port) <= 5
  lowest = 0 if any_port else 1
  if not colon or not bare or not digits or not lowest <= int(port) < 2**16:
    raise FormatError(
      f"{shown(address)} is not of the form host:port, with a port from"
      f" {lowest} to 65535"
    )
  if not bracketed and (":" in bare or not bare.isascii() or " " in bare):
    raise FormatError(
      f"{shown(address)}: {shown(bare)} is no host; an IPv6 address goes in"
      " brackets"
    )
  return bare, int(port)
