"""The cost model of fitted kernel times; CPUs keep Grappler's estimates."""

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import estimate, op_classes, step_costs
from tfplace.cost.assemble import Step
from tfplace.cost.kernels import ops, parameters
from tfplace.cost.kernels.rates import peak_of
from tfplace.cost.kernels.times import times_us
from tfplace.graph.protocols import OpCosts
from tfplace.hardware.gpu_hardware import GpuHardware


class KernelCosts:
  """Kernel times on GPUs, by shapes, precision and `hardware` of the device.

  An op without a kernel takes 0. Calls, temporary bytes and CPUs are as of the
  cost model "grappler".

  Args:
    tensor_float_32: whether float32 is multiplied in TF32 where a GPU can;
      None: as `tf.config.experimental.enable_tensor_float_32_execution` says.
  """

  name = "kernels"

  def __init__(self, tensor_float_32: bool | None = None) -> None:
    self.tensor_float_32 = tensor_float_32

  def op_costs(self, step: Step) -> OpCosts:
    """Times per kind, and temporary bytes of calls.

    Raises:
      ExtractionError: TensorFlow rejects a function.
    """
    enabled = self.tensor_float_32
    if enabled is None:
      enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    others = {k: p for k, p in step.hardware.items() if k not in step.gpus}

    def op_times(classes: op_classes.OpClasses) -> estimate.OpTimes:
      return _op_times(classes, others, step.gpus, enabled)

    return step_costs.estimated_costs(step, op_times)


def _op_times(
  classes: op_classes.OpClasses,
  hardware: Mapping[str, DeviceProperties],
  gpus: Mapping[str, GpuHardware],
  tensor_float_32: bool,
) -> estimate.OpTimes:
  """Times ops on the kinds of `hardware` by Grappler, on GPUs by kernels."""
  by_grappler = estimate.class_times(hardware, classes)
  kernels = _kernels(classes, tensor_float_32)
  times = {**by_grappler.time_us}
  for kind, gpu in gpus.items():
    each = times_us([*kernels.values()], gpu, parameters.load()).tolist()
    at_peak = [
      kernel.flops / peak_of(gpu, kernel.precision)[1]
      for kernel in kernels.values()
    ]
    for key, values in ((kind, each), (estimate.Peak(kind), at_peak)):
      of_class = dict(zip(kernels, values, strict=True))
      times[key] = {
        op: of_class[representative]
        for op, representative in classes.of_op.items()
        if representative in of_class
      }
  return estimate.OpTimes(times, by_grappler.rejected)


def _kernels(
  classes: op_classes.OpClasses, tensor_float_32: bool
) -> dict[str, ops.Kernel]:
  """Maps classes to the kernel of their ops; those without one are absent."""
  members: dict[str, str] = {}
  for name, representative in classes.of_op.items():
    members.setdefault(representative, name)
  result, specs = {}, classes.specs
  for representative, name in members.items():
    op = classes.graph.get_operation_by_name(name)
    inputs = [specs[t.op.name][t.value_index] for t in op.inputs]
    axes = ops.reduced_axes(op)
    view = ops.Op(op.type, op.node_def.attr, inputs, specs[name], axes)
    kernel = ops.kernel_of(view, tensor_float_32)
    if kernel is not None:
      result[representative] = kernel
  return result
