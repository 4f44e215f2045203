"""Kernels of units, counted by hand, and a real step in units."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfplace import cost, extract, load_graph, place, save_graph
from tfplace.cost import fusion
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.graph.microbatches import VariantConfig
from tfplace.hardware.presets import cluster_preset
from tfplace.simulate import Simulator
from tfplace.variants import keras_step


def unit_of(ops, edges, outside=()):
  """The unit of all ops but `outside`.

  Args:
    ops: (type, bytes of each output) of each op.
    edges: (producer, consumer) of a first output, or (producer, output,
      consumer).
  """
  specs = [
    OpSpec(str(i), kind, {"GPU": 1.0}, sizes)
    for i, (kind, *sizes) in enumerate(ops)
  ]
  edges = [edge if len(edge) == 3 else (edge[0], 0, edge[1]) for edge in edges]
  graph = build_graph("g", specs, edges)
  numbers = np.array([-1 if i in outside else 0 for i in range(len(ops))])
  inside = [i for i in range(len(ops)) if i not in outside]
  return fusion.Fusion(graph, numbers).unit(inside)


def traffic(unit, ops):
  """Bytes that each loop reads and writes."""
  return sorted(
    loop.written_bytes + sum(loop.reads.values()) for loop in unit.loops
  )


def test_a_chain_of_elementwise_ops_is_one_kernel():
  ops = [("Arg", 8), ("Mul", 8), ("Tanh", 8), ("Cast", 4), ("Out", 4)]
  unit = unit_of(ops, [(0, 1), (1, 2), (2, 3), (3, 4)], outside=(0, 4))
  assert traffic(unit, ops) == [8 + 4]  # reads the argument, writes the cast
  assert unit.outputs == [3] and unit.temp_bytes == 0


def test_elementwise_ops_are_computed_where_they_are_read():
  # Both sums read the argument through Mul, which is never written; they are
  # equally far and read the same tensor, so they share a kernel.
  ops = [("Arg", 800), ("Mul", 800), ("Sum", 8), ("Max", 8), ("Out", 8)]
  edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
  unit = unit_of(ops, edges, outside=(0, 4))
  assert traffic(unit, ops) == [800 + 8 + 8]


def test_normalization_reads_its_input_once_per_pass():
  # Mean; variance; result: three passes, one output.
  ops = [
    *(("Arg", 800), ("Mean", 8), ("Sub", 800), ("Square", 800)),
    *(("Mean", 8), ("Rsqrt", 8), ("Mul", 800), ("Out", 1)),
  ]
  edges = [
    *((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6), (5, 6), (6, 7))
  ]
  unit = unit_of(ops, edges, outside=(0, 7))
  # The mean reads 800; the variance the argument and the mean; the result
  # both and the variance, through Rsqrt.
  assert traffic(unit, ops) == sorted([808, 808 + 8, 816 + 800])
  assert unit.temp_bytes == 16


def test_fused_normalization_is_a_reduction_and_a_loop():
  norm = ("FusedBatchNormV3", 800, 8, 8)
  ops = [("Arg", 800), norm, ("Relu", 800), ("Out", 1), ("Assign", 1)]
  edges = [(0, 1), (1, 2), (2, 3)]
  # In inference, the result is computed where Relu is.
  unit = unit_of(ops, edges, outside=(0, 3, 4))
  assert traffic(unit, ops) == [800 + 800]
  # In training, the statistics are written first, and then read with the input.
  unit = unit_of(ops, [*edges, (1, 1, 4)], outside=(0, 3, 4))
  assert traffic(unit, ops) == [800 + 16, 800 + 16 + 800]


def test_what_reads_a_cast_reads_the_smaller_type():
  ops = [("Arg", 400), ("Cast", 800), ("Sum", 8), ("Out", 8)]
  unit = unit_of(ops, [(0, 1), (1, 2), (2, 3)], outside=(0, 1, 3))
  assert traffic(unit, ops) == [400 + 8]


def test_a_slice_reads_as_much_as_it_returns():
  ops = [("Arg", 800), ("Exp", 800), ("Slice", 80), ("Slice", 80), ("Out", 8)]
  edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
  unit = unit_of(ops, edges, outside=(0, 4))
  assert traffic(unit, ops) == [2 * (80 + 80)]


def test_an_unrolled_recurrence_takes_linear_time():
  # A cell reads its product and the state before. The state is written: to
  # compute it again, a later cell would read all earlier products.
  def moved(steps):
    ops, edges = [("Arg", 8), ("Arg", 8)], []
    state, output = 0, 1
    for _ in range(steps):
      at = len(ops)
      ops += [("MatMul", 32), ("Slice", 8), ("Add", 8), ("Tanh", 8)]
      edges += [(output, at), (at, at + 1), (state, at + 2), (at + 1, at + 2)]
      edges += [(at + 2, at + 3), (at, at + 3)]
      state, output = at + 2, at + 3
    ops += [("Out", 8), ("Out", 8)]
    edges += [(output, len(ops) - 1), (state, len(ops) - 2)]
    outside = (0, 1, len(ops) - 2, len(ops) - 1)
    return sum(traffic(unit_of(ops, edges, outside), ops))

  assert moved(40) - moved(30) == moved(30) - moved(20)


def test_library_calls_write_and_read_memory():
  # The product reads what Mul wrote. Its bias and activation are its epilogue.
  ops = [
    *(("Arg", 800), ("Mul", 800), ("MatMul", 6400), ("Bias", 8)),
    *(("BiasAdd", 6400), ("Relu", 6400), ("Out", 1)),
  ]
  edges = [(0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6)]
  unit = unit_of(ops, edges, outside=(0, 3, 6))
  assert unit.calls == [2]
  assert traffic(unit, ops) == [1600]
  assert unit.temp_bytes == 800 + 6400  # Relu's result leaves.


def test_an_op_of_two_large_tensors_is_no_epilogue():
  ops = [("Arg", 640), ("MatMul", 640), ("AddV2", 640), ("Out", 1)]
  unit = unit_of(ops, [(0, 1), (1, 2), (0, 2), (2, 3)], outside=(0, 3))
  assert traffic(unit, ops) == [3 * 640]


def test_a_tensor_that_is_handed_on_is_written():
  ops = [("Arg", 8), ("Neg", 8), ("Reshape", 8), ("Exp", 8), ("Out", 1)]
  edges = [(0, 1), (1, 2), (2, 4), (1, 3), (3, 4)]
  unit = unit_of(ops, edges, outside=(0, 4))
  # Neg, whose reshape leaves, then Exp of what was written.
  assert traffic(unit, ops) == [16, 16]


@pytest.fixture(scope="module", params=[1, 2])
def graphs(request):
  keras.utils.set_random_seed(0)
  x = inputs = keras.Input((64,))
  for i in range(3):
    y = keras.layers.LayerNormalization(name=f"norm{i}")(x)
    x = x + keras.layers.Dense(64, "gelu", name=f"dense{i}")(y)
  model = keras.Model(inputs, keras.layers.Dense(1, name="head")(x))
  model.compile("adam", "mse")
  config = VariantConfig(request.param)
  traced = keras_step.trace_keras(model, 512, microbatches=config)
  cluster = cluster_preset("v100x2")
  return [
    cost.op_graph(traced, cluster, compile_units=is_compiled)
    for is_compiled in (False, True)
  ]


def test_units_hold_every_op_once(graphs):
  plain, fused = graphs
  members = [
    name
    for i, name in enumerate(fused.names)
    for name in fused.op_extra.get(i, {}).get("members", [name])
  ]
  assert len(members) == len(set(members))
  missing = set(plain.names) - set(members)
  assert {plain.types[plain.index[name]] for name in missing} == {"Const"}
  assert not set(members) - set(plain.names)
  assert fused.persistent_bytes.sum() == plain.persistent_bytes.sum()


def test_units_are_of_one_microbatch_and_without_state(graphs):
  plain, fused = graphs
  assert "Unit" in fused.types
  for i, extra in fused.op_extra.items():
    ops = [plain.index[name] for name in extra["members"]]
    assert len(ops) > 1
    assert {int(m) for m in plain.microbatch[ops]} == {int(fused.microbatch[i])}
    assert len({int(layer) for layer in plain.layer[ops]}) == 1
    assert not any("Variable" in plain.types[op] for op in ops)


def test_a_fused_step_takes_less_time(graphs):
  problems = [Problem(graph, cluster_preset("v100x2")) for graph in graphs]
  steps = [
    Simulator(p).evaluate(
      np.where(np.isnan(p.graph.time_us["GPU"]), 2, 0)[None]
    )
    for p in problems
  ]
  (plain,), (fused,) = steps
  assert fused.step_time_us < 0.75 * plain.step_time_us
  assert problems[1].graph.num_ops < 0.5 * problems[0].graph.num_ops


def test_writes_of_variables_take_no_time_on_gpus(graphs):
  plain, fused = graphs
  for kind, is_free in (("GPU", True), ("CPU", False)):
    times = {
      graph: [
        float(graph.time_us[kind][i])
        for i, type_ in enumerate(graph.types)
        if type_ == "AssignSubVariableOp"
      ]
      for graph in (plain, fused)
    }
    assert times[plain] and min(times[plain]) > 0
    assert max(times[fused]) == 0 if is_free else times[fused] == times[plain]


def test_units_survive_a_file_and_are_placed(graphs, tmp_path):
  path = tmp_path / "g.json.gz"
  save_graph(graphs[1], path)
  again = load_graph(path)
  assert again.op_extra == graphs[1].op_extra
  assert again.extra["compile"] == "xla"
  problem = Problem(again, cluster_preset("v100x2"))
  result = place(problem, "m_etf", budget_s=10)
  assert result.evaluation.feasible


def test_a_large_layer_has_units_by_name_scope():
  class Unrolled(keras.layers.Layer):
    def build(self, shape):
      self.kernel = self.add_weight((shape[-1], shape[-1]))

    def call(self, x):
      for step in range(60):
        with tf.name_scope(f"step_{step}"):
          x += tf.tanh(tf.sigmoid(x @ self.kernel) - 0.5 * x)
      return x

  model = keras.Sequential([keras.Input((8,)), Unrolled()])
  model.compile("sgd", "mse")
  graph = extract(model, batch_size=4, cluster="v100x2", compile="xla")
  steps = [
    {step for name in names for step in re.findall(r"step_\d+(?=/)", name)}
    for names in graph.members.values()
  ]
  assert max(map(len, steps)) == 1
  assert len(set().union(*steps)) == 60
