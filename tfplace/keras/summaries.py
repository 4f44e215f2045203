"""TensorBoard summaries of a placement in training.

Scalars are written by `tf.summary.write`, since `tf.summary.scalar` needs the
package tensorboard, which TensorFlow does not require.
"""

import math
import os
from collections.abc import Iterator

import tensorflow as tf

from tfplace.core.evaluation import Evaluation
from tfplace.plan.plan import Plan
from tfplace.simulate import Simulator

_RUN = "placement"  # Folder of the summaries, beside Keras' "train".


class PlacementSummaries:
  """Writer of step time and memory per device."""

  def __init__(self, log_dir: str | os.PathLike[str]) -> None:
    """Takes the `log_dir` of TensorBoard."""
    folder = os.path.join(os.fspath(log_dir), _RUN)
    self._writer = tf.summary.create_file_writer(folder)

  def write(self, plan: Plan, step_time_us: float, step: int) -> None:
    """Writes one point per curve.

    Args:
      plan: plan in force.
      step_time_us: median step time; not finite if it is unknown.
      step: number of training steps so far.
    """
    with self._writer.as_default(), tf.summary.record_if(True):
      if math.isfinite(step_time_us):
        _scalar("step_time_ms", step_time_us / 1e3, step)
      for name, value in _memory(plan):
        _scalar(name, value, step)
    self._writer.flush()


def _scalar(name: str, value: float, step: int) -> None:
  proto = tf.compat.v1.SummaryMetadata()
  proto.plugin_data.plugin_name = "scalars"
  tf.summary.write(
    f"{_RUN}/{name}", tf.constant(value, tf.float32), step, proto
  )


def _memory(plan: Plan) -> Iterator[tuple[str, float]]:
  """Yields names and values of the curves of memory."""
  limits: dict[str, float] = {}
  if plan.placement is not None:
    cluster = plan.placement.problem.cluster
    limits = {d.name: d.memory_bytes for d in cluster.devices}
    for device, peak in _predicted(plan).peak_memory_bytes.items():
      short = _short(device)
      yield f"peak_bytes/{short}/predicted", peak
      if 0 < limits.get(device, math.inf) < math.inf:
        yield f"peak_share/{short}/predicted", peak / limits[device]
  for device in filter(_has_own_memory, limits or plan.devices):
    try:
      info = tf.config.experimental.get_memory_info(device)
    except ValueError:  # This device does not count.
      continue
    short, limit = _short(device), limits.get(device, math.inf)
    yield f"current_bytes/{short}/measured", float(info["current"])
    yield f"peak_bytes/{short}/measured", float(info["peak"])
    if 0 < limit < math.inf:
      yield f"peak_share/{short}/measured", info["peak"] / limit


def _has_own_memory(device: str) -> bool:
  """Returns whether no other device takes memory from the same allocator."""
  cpus = tf.config.list_logical_devices("CPU")
  return len(cpus) == 1 or not _short(device).startswith("CPU")


def _predicted(plan: Plan) -> Evaluation:
  if plan.evaluation is not None:
    return plan.evaluation
  assert plan.placement is not None
  (found,) = Simulator(plan.placement.problem).evaluate([plan.placement])
  return found


def _short(device: str) -> str:
  return device.rpartition("/device:")[2]
