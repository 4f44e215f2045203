"""What this process's devices are, and the most memory that they gave out.

GPU allocators count what they give out, once per process whoever asks: the
session that runs the steps shares them with TensorFlow's eager context, which
is the one that has a call for it.
"""

from collections.abc import Iterable

import tensorflow as tf

from tfplace.measure import host, messages


def configure(config: messages.ChildConfig) -> None:
  """Gives the eager context the devices that sessions have; runs nothing."""
  gpus = tf.config.list_physical_devices("GPU") if config.gpus else []
  if config.gpu_memory_mb:
    tf.config.set_visible_devices(gpus[:1], "GPU")
    for gpu in gpus[:1]:
      tf.config.set_logical_device_configuration(
        gpu,
        [
          tf.config.LogicalDeviceConfiguration(memory_limit=mb)
          for mb in config.gpu_memory_mb
        ],
      )
    return
  tf.config.set_visible_devices(gpus, "GPU")
  for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)


def hardware(
  names: Iterable[str], config: messages.ChildConfig
) -> dict[str, str]:
  """Device name -> such as "NVIDIA H100 80GB HBM3"."""
  gpus = tf.config.list_physical_devices("GPU") if config.gpus else []
  result = {}
  for name in names:
    kind, number = _kind_and_number(name)
    if kind == "GPU":
      gpu = gpus[0 if config.gpu_memory_mb else number]
      details = tf.config.experimental.get_device_details(gpu)
      result[name] = str(details.get("device_name", gpu.name))
    else:
      result[name] = host.cpu_name()
  return result


def reset_high_water(names: Iterable[str]) -> None:
  """Has the GPUs among the devices count from what they hold now."""
  for gpu in _gpus(names).values():
    tf.config.experimental.reset_memory_stats(gpu)


def high_water_bytes(names: Iterable[str]) -> dict[str, float]:
  """GPU's name -> most bytes that it had given out since the reset."""
  return {
    name: float(tf.config.experimental.get_memory_info(gpu)["peak"])
    for name, gpu in _gpus(names).items()
  }


def _gpus(names: Iterable[str]) -> dict[str, str]:
  """Full name -> "GPU:0", for the GPUs of this process."""
  found = {name: _kind_and_number(name) for name in names}
  return {
    name: f"GPU:{number}"
    for name, (kind, number) in found.items()
    if kind == "GPU"
  }


def _kind_and_number(name: str) -> tuple[str, int]:
  _, kind, number = name.rsplit(":", 2)
  return kind, int(number)
