"""Names of cluster presets: `v100x2+p100x2`, `2*v100x4+a100x8`.

    preset := gpus ("+" gpus)*                           one host
            | hosts ("+" hosts)*                         several hosts
    hosts  := [number "*"] (gpus | "(" gpus ("+" gpus)* ")")
    gpus   := gpu "x" number ["-pcie" | "-nvlink"]

`+` joins GPUs of one host, unless the name has a `*` or parentheses. Then it
joins hosts, and a host with GPUs of several kinds is in parentheses:
`2*(v100x2+p100x2)`.
"""

import dataclasses
import re
from collections.abc import Sequence

from tfplace.errors import FormatError, shown
from tfplace.hardware.hardware import GPUS, GpuModel

MAX_GPUS_OF_HOST = 8
MAX_GPUS = 64  # GPUs on all hosts of a preset.
_GPUS = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)x([1-9]\d{0,5})(?:-(\w+))?")
_HOSTS = re.compile(r"(?:([1-9]\d{0,5})\*)?(?:\(([^()]+)\)|([^()*+]+))")
_PLUS = re.compile(r"\+(?![^(]*\))")  # outside of parentheses


@dataclasses.dataclass(frozen=True)
class NamedGpus:
  """Equal GPUs of one host.

  Attributes:
    gpu: key of `hardware.GPUS`.
    count: number of them.
    wiring: "pcie", "nvlink", or None for the default of the GPU.
  """

  gpu: str
  count: int
  wiring: str | None

  @property
  def model(self) -> GpuModel:
    return GPUS[self.gpu]

  @property
  def has_nvlink(self) -> bool:
    """Returns whether NVLink joins them, the default except for P100."""
    default = "nvlink" if self.model.nvlinks and self.gpu != "p100" else "pcie"
    return (self.wiring or default) == "nvlink"


@dataclasses.dataclass(frozen=True)
class NamedHosts:
  """Equal hosts.

  Attributes:
    count: number of them.
    gpus: GPUs of each, at most one entry per kind.
  """

  count: int
  gpus: tuple[NamedGpus, ...]


def parse_preset(name: str) -> tuple[tuple[NamedHosts, ...], bool]:
  """Returns the hosts that a preset names, and whether they form a network.

  `1*v100x4` is a network of one host; its devices are named like a worker's.

  Raises:
    FormatError: the name is not of the form; names the part at fault.
  """
  if not isinstance(name, str):
    raise FormatError(
      f"the preset is {shown(name)}; it must be a name such as 'v100x2'"
    )
  in_network = "*" in name or "(" in name
  parts = _PLUS.split(name) if in_network else [name]
  hosts = tuple(_hosts(name, part, in_network) for part in parts)
  total = sum(h.count * sum(g.count for g in h.gpus) for h in hosts)
  if total > MAX_GPUS:
    raise _error(name, name, f"{total} GPUs")
  return hosts, in_network


def _hosts(name: str, part: str, in_network: bool) -> NamedHosts:
  match = _HOSTS.fullmatch(part) if in_network else None
  if in_network and match is None:
    raise _error(name, part, "not hosts")
  inside = part if match is None else match[2] or match[3]
  gpus = tuple(_gpus(name, each) for each in inside.split("+"))
  _check_host(name, inside, gpus)
  return NamedHosts(int(match[1] or 1) if match else 1, gpus)


def _gpus(name: str, part: str) -> NamedGpus:
  match = _GPUS.fullmatch(part)
  if match is None:
    raise _error(name, part, "not <gpu>x<count>")
  gpu, wiring = match[1], match[3]
  if gpu not in GPUS:
    raise _error(name, part, f"unknown gpu {shown(gpu)}")
  if wiring not in (None, "pcie", "nvlink"):
    raise _error(name, part, f"unknown suffix {shown('-' + wiring)}")
  if wiring == "nvlink" and not GPUS[gpu].nvlinks:
    raise FormatError(
      f"unknown cluster preset {shown(name)}: {gpu} has no NVLink; leave out"
      " -nvlink"
    )
  return NamedGpus(gpu, int(match[2]), wiring)


def _check_host(name: str, inside: str, gpus: Sequence[NamedGpus]) -> None:
  count = sum(each.count for each in gpus)
  if count > MAX_GPUS_OF_HOST:
    raise _error(name, inside, f"{count} GPUs in one host")
  totals: dict[str, int] = {}
  for each in gpus:
    totals[each.gpu] = totals.get(each.gpu, 0) + each.count
  if len(totals) < len(gpus):
    keys = [each.gpu for each in gpus]
    twice = next(key for i, key in enumerate(keys) if key in keys[:i])
    raise FormatError(
      f"cluster preset {shown(name)} has {twice} twice in one host"
      f" {shown(inside)}; write {twice}x{totals[twice]}, or a number of hosts"
      f" before each part, as in 1*{twice}x1+1*{twice}x1"
    )


def _error(name: str, part: str, what: str) -> FormatError:
  where = "" if part == name else f"part {shown(part)}: "
  return FormatError(
    f"unknown cluster preset {shown(name)} ({where}{what}): the form is"
    f" <gpu>x<count>, -pcie or -nvlink after it, + between unequal GPUs of a"
    f" host, and <hosts>* before it, as 2*v100x4+a100x8 or 2*(v100x2+p100x2);"
    f" a gpu of {', '.join(GPUS)}; 1 to {MAX_GPUS_OF_HOST} in a host,"
    f" 1 to {MAX_GPUS} GPUs in all"
  )
