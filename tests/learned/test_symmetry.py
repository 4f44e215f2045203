"""Identical devices are found, and placements are named as is best."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.graph import symmetry
from tfplace.graph.cluster import MESSAGE_COSTS


def test_identical_devices_are_one_class_and_others_are_not():
  assert symmetry.device_classes(gpus(3, cpu=True)).tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize("field", ["bandwidth_bytes_per_us", *MESSAGE_COSTS])
def test_a_device_with_another_link_is_a_class_of_its_own(field):
  cluster = gpus(3)
  links = list(cluster.links)
  links[0] = dataclasses.replace(links[0], **{field: 9000.0})
  cluster = dataclasses.replace(cluster, links=tuple(links))
  # Link 0 is from GPU 0 to GPU 1: no two of the three look alike.
  assert symmetry.device_classes(cluster).tolist() == [0, 1, 2]


def test_devices_that_share_a_channel_differ_from_another():
  cluster = gpus(3)
  links = tuple(
    dataclasses.replace(link, channel="bus")
    if link.src in ("/device:GPU:0", "/device:GPU:1")
    else link
    for link in cluster.links
  )
  cluster = dataclasses.replace(cluster, links=links)
  assert symmetry.device_classes(cluster).tolist() == [0, 0, 2]


def test_first_use_is_in_order_within_a_class():
  classes = np.array([0, 0, 0, 3])
  found = symmetry.by_first_use(np.array([2, 3, 0, 2, 0]), classes)
  assert found.tolist() == [0, 3, 1, 0, 1]


def test_renaming_never_changes_the_step_time():
  problem = problem_of(random_graph(30, seed=5), gpus(3, cpu=True))
  classes = symmetry.device_classes(problem.cluster)
  rng = np.random.default_rng(0)
  choices = rng.integers(0, 4, (8, 30), dtype=np.int32)
  logits = rng.normal(size=(30, 4)).astype(np.float32)
  simulator = Simulator(problem)
  expected = simulator.run(choices).step_time_us
  likeliest = symmetry.likeliest(choices, logits, classes)
  first = np.stack([symmetry.by_first_use(row, classes) for row in choices])
  np.testing.assert_array_equal(simulator.run(likeliest).step_time_us, expected)
  np.testing.assert_array_equal(simulator.run(first).step_time_us, expected)
  at = np.arange(30)
  # No name is likelier than another; the old one is one of them.
  assert (
    logits[at, likeliest].sum(axis=1) >= logits[at, choices].sum(axis=1)
  ).all()
