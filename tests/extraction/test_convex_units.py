"""Units are convex, of one layer, pass and microbatch, without state."""

import graphlib

import numpy as np
import pytest
import tensorflow as tf

from tfplace.variants.units import convex, forming


def check_acyclic(groups, before):
  """The graph of groups has no cycle; a node without a group is its own."""
  name = [g if g >= 0 else -2 - i for i, g in enumerate(groups)]
  inputs = {n: set() for n in name}
  for b, found in enumerate(before):
    inputs[name[b]] |= {name[a] for a in found} - {name[b]}
  graphlib.TopologicalSorter(inputs).prepare()  # or a CycleError


def random_dag(rng, size):
  """[size]: up to three predecessors of each node among the 30 before it."""
  return [
    sorted(set(rng.integers(max(0, i - 30), i, rng.integers(4)).tolist()))
    if i
    else []
    for i in range(size)
  ]


def test_two_groups_do_not_wait_for_each_other():
  # a0 -> b3 and b1 -> a2: no path of ops is closed, but one of groups would be.
  groups = convex.convex_groups(
    ["a", "b", "a", "b"], [[], [], [1], [0]], range(4)
  )
  assert groups == [0, 1, 0, 2]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_of_groups_have_no_cycle(seed):
  rng = np.random.default_rng(seed)
  before = random_dag(rng, 120)
  keys = [None if rng.random() < 0.1 else int(rng.integers(6)) for _ in before]
  groups = convex.convex_groups(keys, before, range(len(before)))
  check_acyclic(groups, before)
  for key, group in zip(keys, groups, strict=True):
    assert (key is None) == (group < 0)
  # Groups are of one key, and larger than without grouping.
  assert len({(g, k) for g, k in zip(groups, keys, strict=True)}) == len(
    set(groups)
  )
  assert len(set(groups)) < len(before) / 2


def test_ops_that_xla_lacks_are_in_no_unit():
  with tf.Graph().as_default():
    x = tf.constant([1.0])
    ops = [
      tf.tanh(x).op,
      tf.strings.as_string(x).op,  # strings
      tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32).op,  # state
      tf.where(x > 0).op,  # a shape that depends on values
    ]
  assert [forming.compiles(op) for op in ops] == [True, False, False, False]
