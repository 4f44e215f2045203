import keras
import numpy as np
import pytest

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ApplyError, FormatError

FULL = at.LOCAL + "CPU:"


@pytest.mark.parametrize("kind", ["dense", "lstm"])
def test_partition_graphs_show_every_op_where_the_plan_says(kind):
  model = at.build(kind)
  _, placement = at.unit_placement(model, kind, seed=1)
  with at.recorded() as ran:
    at.losses(tfplace.place_model(model, placement=placement), kind, 1)
  same = at.planned_ops(ran, placement)
  assert len(same) > 0.4 * placement.problem.graph.num_ops
  for node, planned in same:
    assert node.device == planned, node


def test_a_layer_plan_places_forward_gradient_and_variables():
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert at.devices_of(ran, "first") == {"CPU:1"}
  assert at.devices_of(ran, "second") == {"CPU:2"}
  assert at.devices_of(ran, "last") == {"CPU:1"}
  where = {v.path: v.value.device for v in model.variables}
  assert where["net/first/kernel"] == FULL + "1"
  assert where["net/second/bias"] == FULL + "2"


def test_an_unplaced_model_runs_on_one_device():
  with at.recorded() as ran:
    at.losses(at.build("dense"), "dense", 1)
  assert {node.device for node in ran} == {"CPU:0"}


def test_optimizer_slots_are_on_the_device_of_their_variable():
  plan = {"first": "CPU:1", "last": "CPU:2"}
  model = tfplace.place_model(at.build("dropout"), placement=plan)
  at.losses(model, "dropout", 1)
  where = {v.name: v.value.device for v in model.optimizer.variables}
  assert where["net_first_kernel_momentum"] == FULL + "1"
  assert where["net_last_bias_velocity"] == FULL + "2"


def test_a_fitted_model_keeps_weights_and_optimizer_state():
  expected = at.unplaced("dropout")
  model = at.build("dropout")
  before = at.losses(model, "dropout", 10)
  tfplace.place_model(model, placement=at.SPLIT)
  after = at.losses(model, "dropout", 10)
  got = np.concatenate([before, after])
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
  assert int(model.optimizer.iterations) == 20


def test_an_op_mapping_without_handles_moves_the_variables_too():
  model = at.build("dense")
  _, placement = at.unit_placement(model, "dense")
  ops = placement.assignments
  kernel = ops["net/second/kernel"]
  for name, kind in zip(
    placement.problem.graph.names, placement.problem.graph.types, strict=True
  ):
    if kind == "VarHandleOp":
      del ops[name]
  tfplace.place_model(model, placement=ops)
  at.losses(model, "dense", 1)
  assert model.get_layer("second").kernel.value.device == kernel


def test_a_placement_file_does_as_well(tmp_path):
  model = at.build("dense")
  _, placement = at.unit_placement(model, "dense")
  placement.save(tmp_path / "p.json")
  tfplace.place_model(model, placement=tmp_path / "p.json")
  assert model.placement.assignments == placement.assignments
  (tmp_path / "p.json").write_text("{")
  with pytest.raises(FormatError, match=r"p\.json"):
    tfplace.place_model(at.build("dense"), placement=tmp_path / "p.json")


def test_placing_again_follows_the_new_plan():
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  at.losses(model, "dense", 1)
  tfplace.place_model(model, placement=dict.fromkeys(at.SPLIT, "CPU:2"))
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert at.devices_of(ran, "first") == {"CPU:2"}
  assert model.get_layer("first").kernel.value.device == FULL + "2"


@pytest.mark.parametrize("name", ["GPU:7", "CPU:3", "nonsense", "", "CPU:x"])
def test_a_device_that_the_process_lacks_is_named(name):
  with pytest.raises(ApplyError) as caught:
    tfplace.place_model(at.build("dense"), placement={"first": name})
  assert repr(name) in str(caught.value)
  assert "CPU:2" in str(caught.value)
  assert caught.value.device == name


@pytest.mark.parametrize(
  ("names", "said"),
  [
    (["first", "thrid"], r"'thrid', .* layers are first, .*last, net, second"),
    (["first", "secnd"], r"'secnd', .* did you mean 'second'\? its layers"),
    (["encoder", "decoder"], r"'encoder', which is no layer of model 'net'"),
    (["frist", "lst"], r"'frist', .* did you mean 'first'\?"),
    (["MatMul"], r"'MatMul', which is no layer of model 'net'"),
    (["first", 3], "a placement is .* a mapping of op or layer names"),
  ],
)
def test_a_layer_that_the_model_lacks_is_named_at_once(names, said):
  model = at.build("dense")
  with pytest.raises(ApplyError, match=said):
    tfplace.place_model(model, placement=dict.fromkeys(names, "CPU:1"))
  assert not hasattr(model, "placement")


class Late(keras.Model):
  """Its layers are made when it is built."""

  def build(self, shape):
    self.stack = [keras.layers.Dense(4, name=f"late_{i}") for i in range(20)]
    for layer in self.stack:
      layer.build((None, 4))

  def call(self, x):
    for layer in self.stack:
      x = layer(x)
    return x


@pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("wrong", [["late_1", "late_20"], ["late_20"]])
def test_a_layer_may_be_made_late_but_no_step_runs_without_it(use, wrong):
  data = [np.ones((4, 4), "float32")] * (1 if use == "predict" else 2)
  for names, refused in ((["late_1"], False), (wrong, True)):
    model = Late(name="net")
    model.compile("sgd", "mse")
    placement = dict.fromkeys(names, "CPU:1")
    tfplace.place_model(model, placement=placement)
    if not refused:
      getattr(model, use)(*data, verbose=0)
      assert model.stack[1].kernel.value.device == FULL + "1"
      continue
    with pytest.raises(ApplyError, match=r"'late_20', .* and 9 others"):
      getattr(model, use)(*data, verbose=0)
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize(
  ("placement", "devices"),
  [
    ({"first": "CPU:1"}, "CPU:1"),
    ({"first": "CPU:2", "second": "CPU:1"}, "CPU:1, CPU:2"),
    ({"net/first/kernel": "CPU:2"}, "CPU:2"),
  ],
)
def test_a_partial_placement_tells_where_the_rest_is(placement, devices):
  model = tfplace.place_model(at.build("dense"), placement=placement)
  assert model.placement.message.startswith(
    f"placed on {devices} as given; other ops are on CPU:0 or"
  )
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  used = {at.LOCAL + node.device for node in ran}
  assert set(model.placement.devices) == used


def test_a_whole_placement_has_no_rest():
  model = at.build("dense")
  _, placement = at.unit_placement(model, "dense")
  told = tfplace.place_model(model, placement=placement).placement
  assert told.message == "placed on CPU:0, CPU:1, CPU:2 as given"


def test_a_plan_for_another_model_is_refused():
  model = tfplace.place_model(
    at.build("dense"), placement={"other/layer/MatMul": "CPU:1"}
  )
  said = "none of the ops .* and 'other/layer/MatMul' that it does not have"
  with pytest.raises(ApplyError, match=said):
    at.losses(model, "dense", 1)


@pytest.mark.parametrize("what", [None, "a model", 3])
def test_only_keras_models_are_placed(what):
  with pytest.raises(ApplyError, match="Keras 3 model"):
    tfplace.place_model(what, placement={"first": "CPU:1"})


@pytest.mark.parametrize("placement", [{}, 3, ["CPU:1"]])
def test_what_is_no_placement_is_refused(placement):
  with pytest.raises(ApplyError, match="a placement is"):
    tfplace.place_model(at.build("dense"), placement=placement)
