"""The shipped table of GPU kernels says what TensorFlow's registry says."""

import collections
import json

import pytest
import tensorflow as tf
from tensorflow.core.framework import kernel_def_pb2
from tensorflow.python.framework import kernels as registry

from tfplace.extraction import kernels

HAS_GPU_KERNELS = not kernels.is_needed()


def collected():
  """The registrations that a GPU serves, by op type; few for many types."""
  found = collections.defaultdict(set)
  for kernel in registry.get_all_registered_kernels().kernel:
    if kernel.device_type in ("GPU", kernels.DEFAULT):
      found[kernel.op].add(kernels.registration(kernel))
  return {op: merged(rows) for op, rows in sorted(found.items())}


def merged(rows):
  """Joins rows that differ in the types of one attribute only."""
  for at in range(max(len(constraints) for _, constraints in rows)):
    types, kept = collections.defaultdict(set), []
    for label, constraints in sorted(rows):
      if at < len(constraints):
        name, allowed = constraints[at]
        rest = constraints[:at], name, constraints[at + 1 :]
        types[label, rest].update(allowed)
      else:
        kept.append((label, constraints))
    for (label, (before, name, after)), allowed in types.items():
      joined = (name, tuple(sorted(allowed)))
      kept.append((label, (*before, joined, *after)))
    rows = kept
  return sorted(rows)


@pytest.mark.skipif(not HAS_GPU_KERNELS, reason="a build without GPU kernels")
def test_the_table_is_what_this_tensorflow_registers():
  if f'"tensorflow":"{tf.__version__}"' not in kernels.FILE.read_text():
    pytest.skip("the table is of another version")
  assert kernels.shipped() == collected()


class _NoGpuRegistry:
  """TensorFlow's registry as a build for CPUs alone has it."""

  @staticmethod
  def get_registered_kernels_for_op(op):
    found = registry.get_registered_kernels_for_op(op).kernel
    kept = [k for k in found if k.device_type == "CPU"]
    return kernel_def_pb2.KernelList(kernel=kept)


def _nodes():
  graph = tf.Graph()
  with graph.as_default():
    for dtype in (tf.float32, tf.int64, tf.bfloat16):
      x = tf.compat.v1.placeholder(dtype, (2, 2))
      tf.matmul(x, x)
      tf.shape(x)
      tf.raw_ops.UniqueV2(x=tf.reshape(x, [-1]), axis=[0])
      tf.cast(x, tf.int32) + 1
    v = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=())
    tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32)
    tf.strings.upper("a")
    tf.no_op()
  return graph.as_graph_def().node


@pytest.mark.skipif(not HAS_GPU_KERNELS, reason="a build without GPU kernels")
def test_a_build_without_gpu_kernels_gives_the_same_kinds(monkeypatch):
  nodes = _nodes()
  table = kernels.KernelTable({})
  expected = [table.kinds(node) for node in nodes]
  assert {frozenset({"CPU"}), frozenset({"CPU", "GPU"})} == set(expected)
  monkeypatch.setattr(kernels, "registry", _NoGpuRegistry)
  monkeypatch.setattr(kernels, "is_needed", lambda: True)
  table = kernels.KernelTable({})
  without = [
    (node.op, kinds)
    for node, kinds in zip(nodes, expected, strict=True)
    if node.op != "NoOp" and table.kinds(node) != kinds
  ]
  assert not without


if __name__ == "__main__":
  content = {"tensorflow": tf.__version__, "kernels": collected()}
  text = json.dumps(content, separators=(",", ":"))
  kernels.FILE.write_text(text + "\n")
