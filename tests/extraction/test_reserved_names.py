"""Names of models that would be misread as names of ops that tfplace adds."""

import keras
import pytest
from keras import layers

from tfplace import extract
from tfplace.errors import ExtractionError


@pytest.mark.parametrize("name", ["microbatch_1", "recompute_0"])
def test_a_model_with_a_reserved_name_is_refused(name):
  model = keras.Sequential([keras.Input((4,)), layers.Dense(2)], name=name)
  model.compile("sgd", "mse")
  with pytest.raises(ExtractionError, match=f"model '{name}' .* rename it"):
    extract(model, "v100x1")


def test_max_in_flight_needs_microbatches():
  with pytest.raises(ExtractionError, match="microbatches is 1: give both"):
    extract("rnnlm_2", max_in_flight=2)
