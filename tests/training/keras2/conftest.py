"""Fixtures of the tests that need Keras 2."""

import dataclasses

import pytest
import tensorflow as tf

from tests.testing.eager import run_eagerly
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned import features
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policy_format import Exportable
from tfplace.training.encoder.gdp import NetworkConfig, PlacementNetwork


@pytest.fixture(autouse=True)
def seeded():
  """Seeded, and ops as in training, whatever ran before: failures repeat."""
  tf.config.experimental.enable_op_determinism()
  tf.keras.utils.set_random_seed(0)


@pytest.fixture
def eagerly():
  """Functions run as they are: a few steps take less than their tracing."""
  with run_eagerly():
    yield


@pytest.fixture(scope="session")
def network():
  """A small network of `gdp`, not trained."""
  config = NetworkConfig(units=16, type_units=4, segment=8, pair_units=8)
  found = PlacementNetwork(config)
  decisions = group_decisions(problem_of(random_graph(5, 5), gpus(2)))
  found(features.extract(decisions, axes=config.axes).tensors())
  return found


@pytest.fixture(scope="session")
def policy(network):
  """The network as a policy to be exported."""
  sizes = dataclasses.asdict(network.config)
  functions = network.exported_functions()
  return Exportable("gdp", sizes, network.variables, functions)
