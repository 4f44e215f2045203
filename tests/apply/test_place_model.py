import apply_testing as at
import numpy as np
import pytest

import tfplace
from tfplace.errors import ApplyError


@pytest.mark.parametrize("kind", at.MODELS)
def test_losses_of_20_steps_equal_those_of_the_unplaced_model(kind):
  expected = at.losses(at.build(kind), kind)
  placed = tfplace.place_model(at.build(kind), placement=at.SPLIT)
  with at.recorded() as ran:
    got = at.losses(placed, kind)
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
  assert expected[-1] < expected[0]
  devices = set().union(*ran.values())
  assert {"CPU:1", "CPU:2"} <= devices


def test_ops_and_gradients_run_where_the_plan_says():
  placed = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  with at.recorded() as ran:
    at.losses(placed, "dense", 1)
  assert at.of_layer(ran, "first") == {"CPU:1"}
  assert at.of_layer(ran, "second") == {"CPU:2"}
  assert at.of_layer(ran, "last") == {"CPU:1"}


def test_unplaced_ops_run_on_one_device():
  with at.recorded() as ran:
    at.losses(at.build("dense"), "dense", 1)
  assert at.of_layer(ran, "first") == {"CPU:0"}
  assert at.of_layer(ran, "second") == {"CPU:0"}


def test_a_device_that_the_process_lacks_is_named():
  with pytest.raises(ApplyError, match="'GPU:7'") as caught:
    tfplace.place_model(at.build("dense"), placement={"first": "GPU:7"})
  assert caught.value.device == "GPU:7"
