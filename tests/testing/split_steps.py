"""Training steps in microbatches, small enough to know their best placement."""

import numpy as np

from tests.testing.clusters import linked
from tfplace.graph import Device, OpSpec, Problem, build_graph
from tfplace.graph.microbatches import VariantConfig


def two_stages(count=2, update_us=1.0, memory=np.inf):
  """Two stages, each on a device of its own kind: 14 us of work and an update.

  Forward 2 and 4, backward 2 and 6. In two microbatches, by hand, 12 us as ops
  become ready, for the second forward pass of the second stage goes before the
  first backward pass there, and 10 by rank; then the update. The second device
  holds two activations of 8 bytes, or one, and each op a byte of its own.

  Args:
    count: microbatches, 1 or 2.
    update_us: microseconds of the update.
    memory: bytes of the second device.
  """
  ops, edges = [], []
  for m in range(count):
    scope, first = f"microbatch_{m}/" if count > 1 else "", len(ops)
    for name, kind, us, sizes in (
      ("f0", "GPU", 2.0, (0.0, 8.0)),
      ("f1", "TPU", 4.0, (8.0,)),
      ("b1", "TPU", 2.0, (0.0,)),
      ("b0", "GPU", 6.0, (0.0,)),
    ):
      of = m if count > 1 else None
      time_us = {kind: us / count}
      spec = OpSpec(scope + name, "X", time_us, sizes, 1.0, microbatch=of)
      ops.append(spec)
    edges += [(first + i, 0, first + i + 1) for i in range(3)]
    edges += [(first, 1, first + 3), (first + 3, 0, 4 * count)]
  ops.append(OpSpec("update", "X", {"GPU": update_us}, (0.0,), 1.0))
  devices = (Device("GPU:0", "GPU"), Device("TPU:0", "TPU", memory))
  return Problem(build_graph("two_stages", ops, edges), linked(devices, 1.0))


def split_graph(
  layers=4, microbatches=4, us=100.0, num_bytes=100.0, weight=1000.0, **known
):
  """A chain of layers, forward and back, gradients added, weights updated.

  Args:
    layers: each has a variable of `weight` bytes.
    microbatches: each goes through all layers and back.
    us: of a forward and of a backward op.
    num_bytes: of an activation and of its gradient.
    weight: bytes of a variable and of its gradient, for all or each layer.
    **known: `layer=False` leaves out the ops' layers; `devices` are those of
      each host that sums and relays are made for.
  """
  config = VariantConfig(microbatches, devices=known.get("devices", ()))
  ops, edges, at = [], [], {}
  weights = np.broadcast_to(weight, layers).tolist()

  def add(key, op, inputs, **fields):
    at[key] = len(ops)
    ops.append(op)
    edges.extend((at[source], 0, at[key]) for source in inputs)

  for j in range(layers):
    layer = f"net/layer_{j}" if known.get("layer", True) else None
    for kind, size in (("var", 0.0), ("read", weights[j])):
      held = weights[j] if kind == "var" else 0.0
      spec = OpSpec(
        f"{kind}/net/layer_{j}/kernel",
        kind,
        {"GPU": 0.0},
        (size,),
        persistent_bytes=held,
        colocation=f"kernel_{j}",
        layer=layer,
      )
      add((kind, j), spec, [("var", j)] if kind == "read" else [])
    for scope in dict.fromkeys(map(config.relay_scope, range(microbatches))):
      if scope:
        spec = OpSpec(
          f"{scope}layer_{j}", "Identity", {"GPU": 0.0}, (weights[j],)
        )
        add((scope, j), spec, [("read", j)])

  def passes(i, j, kind, inputs, sizes):
    layer = f"net/layer_{j}" if known.get("layer", True) else None
    prefix = "gradient_tape/" if kind == "back" else ""
    name = f"microbatch_{i}/{prefix}net/layer_{j}/MatMul"
    name += "/MatMul_1" if prefix else ""
    spec = OpSpec(name, "MatMul", {"GPU": us}, sizes, 0, 0, None, layer, i)
    add((kind, i, j), spec, inputs)

  for i in range(microbatches):
    read = config.relay_scope(i) or "read"
    for j in range(layers):
      before = [("forward", i, j - 1)] if j else []
      passes(i, j, "forward", [(read, j), *before], (num_bytes,))
    for j in reversed(range(layers)):
      last = j == layers - 1
      before = ("forward", i, j) if last else ("back", i, j + 1)
      passes(i, j, "back", [before, (read, j)], (num_bytes, weights[j]))

  def total(sums, j):
    """Adds nested sums; returns the key of the result, its first microbatch."""
    if isinstance(sums, int):
      return ("back", sums, j), sums
    (result, first), *others = (total(one, j) for one in sums)
    for other, number in others:
      key = ("add", number, j)
      name = f"accumulate/net/layer_{j}/kernel/add_{number}"
      add(key, OpSpec(name, "AddV2", {"GPU": 1.0}, (weights[j],)), [])
      for source in (result, other):
        output = 1 if source[0] == "back" else 0
        edges.append((at[source], output, at[key]))
      result = key
    return result, first

  for j in range(layers):
    last, _ = total(config.sums, j)
    update = OpSpec(
      f"update/net/layer_{j}", "Apply", {"GPU": 1.0}, colocation=f"kernel_{j}"
    )
    add(("update", j), update, [("var", j)])
    output = 1 if last[0] == "back" else 0
    edges.append((at[last], output, at["update", j]))
  return build_graph("split", ops, edges), at
