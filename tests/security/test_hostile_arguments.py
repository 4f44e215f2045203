"""Arguments of any type and size get one sentence that names them."""

import keras
import numpy as np
import pytest

import tfplace
from tests.testing.policy_problems import gpus, random_graph

HUGE = 10**400
LONG = 10**5000  # More digits than Python converts to text.


@pytest.fixture(scope="module")
def model():
  inputs = keras.Input((8,))
  outputs = keras.layers.Dense(8, name="ab")(inputs)
  result = keras.Model(inputs, outputs)
  result.compile("sgd", "mse", jit_compile=False)
  return result


def plan(model, **arguments):
  fixed = {"cluster": "v100x2", "strategy": "single", "budget_s": 0.1}
  return tfplace.plan_model(model, **{**fixed, "verbose": 0, **arguments})


def check_named(call, name):
  with pytest.raises(tfplace.TfplaceError) as caught:
    call()
  said = str(caught.value)
  assert name in said and "\n" not in said and len(said) < 500


@pytest.mark.parametrize("value", [HUGE, -LONG, [HUGE]], ids=range(3))
@pytest.mark.parametrize("name", ["gap", "budget_s"])
def test_huge_numbers_are_named(model, name, value):
  check_named(lambda: plan(model, **{name: value}), name)
  problem = tfplace.Problem(random_graph(5, seed=1), gpus(2))
  call = {"budget_s": 1.0, "max_evaluations": 1, name: value}
  check_named(lambda: tfplace.place(problem, "single", **call), name)


@pytest.mark.parametrize(
  "name, value",
  [
    ("seed", -LONG),
    ("batch_size", -LONG),
    ("microbatches", LONG),
    ("max_in_flight", -LONG),
    ("max_memory", {"GPU:0": LONG}),
    ("strategy", np.array([1, 2])),
    ("order", np.array([1, 2])),
    ("costs", np.array([1, 2])),
    ("verbose", LONG),
    ("keep_together", b"ab"),
  ],
  ids=range(10),
)
def test_values_of_wrong_types_and_sizes_are_named(model, name, value):
  told = {"max_memory": "GPU:0", "costs": "cost model"}.get(name, name)
  check_named(lambda: plan(model, **{name: value}), told)


@pytest.mark.parametrize(
  "sample",
  [
    *("x", 5, object(), iter([1]), (), {}, {"x": "y"}, [[1, 2], [3]]),
    (np.zeros((4, 8)), "y"),
    (np.zeros((4, 8)),) * 4,
    (None, None),
  ],
  ids=lambda value: type(value).__name__,
)
def test_a_sample_that_is_no_batch_is_named(model, sample):
  check_named(lambda: plan(model, sample=sample), "sample is ")


def test_one_name_is_a_group_of_its_own(model):
  alone, listed = (plan(model, keep_together=k) for k in ("ab", ["ab"]))
  groups = [p.placement.problem.graph.colocation for p in (alone, listed)]
  np.testing.assert_array_equal(*groups)
  check_named(lambda: plan(model, keep_together="a"), "keep_together names 'a'")


@pytest.mark.parametrize("value", [LONG, "x", [1]], ids=range(3))
@pytest.mark.parametrize(
  "name",
  ["time_us", "peak_us", "output_bytes", "persistent_bytes", "temp_bytes"],
)
def test_values_of_ops_that_are_no_numbers_are_named(name, value):
  given = {"time_us": {"CPU": value}, "peak_us": {"CPU": value}}
  given |= {"output_bytes": [value]}
  fields = {"time_us": {"CPU": 1.0}, name: given.get(name, value)}
  spec = tfplace.OpSpec("a", "X", **fields)
  check_named(lambda: tfplace.build_graph("g", [spec], []), f"{name} of an op")
