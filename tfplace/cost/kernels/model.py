"""The cost model of fitted kernel times; CPUs keep Grappler's estimates."""

import dataclasses
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.core.gpu_hardware import GpuHardware
from tfplace.core.protocols import OpCosts
from tfplace.cost import estimate, op_classes, step_costs
from tfplace.cost.assemble import Step
from tfplace.cost.kernels import ops, parameters
from tfplace.cost.kernels.rates import peak_of
from tfplace.cost.kernels.times import times_us


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
    timer = _Timer(others, step.gpus, parameters.load(), enabled)
    return step_costs.estimated_costs(step, timer)


@dataclasses.dataclass(frozen=True)
class _Timer:
  """`estimate.OpTimer`: of CPUs by Grappler, of GPUs by kernels.

  Attributes:
    hardware: kinds that Grappler estimates.
    gpus: kinds that kernels are timed on.
    parameters: fitted.
    tensor_float_32: whether float32 is multiplied in TF32.
  """

  hardware: Mapping[str, DeviceProperties]
  gpus: Mapping[str, GpuHardware]
  parameters: parameters.KernelParameters
  tensor_float_32: bool

  def __call__(self, classes: op_classes.OpClasses) -> estimate.OpTimes:
    found = estimate.class_times(self.hardware, classes)
    kernels = self._kernels(classes)
    times = {**found.time_us}
    for kind, gpu in self.gpus.items():
      each = times_us([*kernels.values()], gpu, self.parameters).tolist()
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
    return estimate.OpTimes(times, found.rejected)

  def _kernels(self, classes: op_classes.OpClasses) -> dict[str, ops.Kernel]:
    """Class -> the kernel of its ops; classes without one are absent."""
    members: dict[str, str] = {}
    for name, representative in classes.of_op.items():
      members.setdefault(representative, name)
    result, specs = {}, classes.specs
    for representative, name in members.items():
      op = classes.graph.get_operation_by_name(name)
      inputs = [specs[t.op.name][t.value_index] for t in op.inputs]
      axes = ops.reduced_axes(op)
      view = ops.Op(op.type, op.node_def.attr, inputs, specs[name], axes)
      kernel = ops.kernel_of(view, self.tensor_float_32)
      if kernel is not None:
        result[representative] = kernel
    return result
