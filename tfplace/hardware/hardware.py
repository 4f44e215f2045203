"""Published figures of GPUs, hosts and networks: `hardware.json`.

Each entry names its source. Cluster presets are built from them.
"""

import dataclasses
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class GpuModel:
  """Published figures of one GPU.

  Attributes:
    names: products that CUDA reports, without "NVIDIA" and product lines.
    hardware: description of a device, see `gpu_hardware`.
    host: key of `HOSTS`.
    network: key of `NETWORKS`.
    nvlinks: number of NVLinks.
    nvlink_bytes_per_us: one way, of one NVLink.
    nvswitch: whether all NVLinks go into a switch.
    source: source of the figures.
  """

  names: Sequence[str]
  hardware: Mapping[str, Any]
  host: str
  network: str
  nvlinks: int
  nvlink_bytes_per_us: float
  nvswitch: bool
  source: str

  @property
  def memory_bytes(self) -> float:
    """Capacity as sold (GiB of the data sheet)."""
    return float(self.hardware["memory_size"])


@dataclasses.dataclass(frozen=True)
class HostModel:
  """Published figures of a host.

  Attributes:
    hardware: description of its CPU device: all sockets and their memory.
    pcie_bytes_per_us: one way, of one x16 slot. Generation 3.0 moves 12,000
      B/us after packet headers (15,750 on the wire), 4.0 and 5.0 double that.
    source: source of the figures.
  """

  hardware: Mapping[str, Any]
  pcie_bytes_per_us: float
  source: str


@dataclasses.dataclass(frozen=True)
class NetworkModel:
  """Published figures of a network between hosts.

  Attributes:
    bytes_per_us: one-way bandwidth of one adapter; 100 Gb/s are 12,500 B/us.
    gpus_per_adapter: consecutive GPUs that share an adapter, starting with GPU
      0 on adapter 0. The CPU uses adapter 0.
    latency_us: added to the latency of a transfer inside a host.
    source: source of the figures.
  """

  bytes_per_us: float
  gpus_per_adapter: int
  latency_us: float
  source: str


_FILE = importlib.resources.files("tfplace.hardware") / "hardware.json"
_TABLES = json.loads(_FILE.read_text(encoding="utf-8"))
GPUS = {name: GpuModel(**row) for name, row in _TABLES["gpus"].items()}
HOSTS = {name: HostModel(**row) for name, row in _TABLES["hosts"].items()}
NETWORKS = {
  name: NetworkModel(**row) for name, row in _TABLES["networks"].items()
}
# Number of NVLinks between each pair of GPUs of a DGX-1 with V100, a hybrid
# cube mesh with 6 links per GPU, as printed by `nvidia-smi topo -m`.
DGX1_NVLINKS: list[list[int]] = _TABLES["dgx1_nvlinks"]

_LINES = re.compile(r"\b(NVIDIA|Tesla|GeForce|Quadro)\b")  # of products


def find_gpu(product: str, architecture: str) -> str | None:
  """Returns the key in `GPUS` of a GPU that CUDA reports; None if unknown.

  Args:
    product: its name, such as "NVIDIA A100-SXM4-80GB".
    architecture: its compute capability, such as "8.0".
  """
  name = _LINES.sub("", product).strip()
  for key, gpu in GPUS.items():
    environment = gpu.hardware["environment"]
    if name in gpu.names and environment["architecture"] == architecture:
      return key
  return None
