"""What a worker says of itself: its TensorFlow and its host's memory.

TensorFlow's protocol has no question for either. But every server names its
devices with its job, and that name is its owner's to choose: so a
tfplace-worker serves as the job `tfplace_tf_2_21_0_mib_32000`, and whoever
lists its devices reads the version and the memory. (The harness gives every
worker a task of its own cluster when it opens a session.)
"""

import dataclasses
import re
from collections.abc import Iterable

_SAYS = re.compile(r"/job:tfplace_tf_(?P<version>\w+)_mib_(?P<mib>\d+)/.*")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Introduction:
  """What a worker says.

  Attributes:
    version: of its TensorFlow; "2.21.0-rc1" is read as "2.21.0.rc1".
    memory_bytes: of its host.
  """

  version: str
  memory_bytes: float

  @property
  def job(self) -> str:
    """The job's name that says this."""
    version = re.sub(r"\W", "_", self.version)
    return f"tfplace_tf_{version}_mib_{int(self.memory_bytes) // _MIB}"

  def has_version(self, version: str) -> bool:
    return self.version == re.sub(r"\W|_", ".", version)


def read(device_names: Iterable[str]) -> Introduction | None:
  """What a worker's devices say of it; None where it is no tfplace-worker."""
  for name in device_names:
    says = _SAYS.fullmatch(name)
    if says:
      version = says["version"].replace("_", ".")
      return Introduction(version, float(says["mib"]) * _MIB)
  return None
