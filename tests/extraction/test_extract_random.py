"""Random programs of calls, branches, loops and effects run as they should."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.traced_steps import run_steps
from tfplace.extraction.functions import trace_function

STEPS = ("scale", "add", "effect", "call", "ignore", "cond", "loop")


def _random_body(rng, variables, depth):
  """A function of one float that calls others, `depth` levels deep."""
  kinds = rng.choice(STEPS[: 7 if depth else 3], size=3)
  plan = []
  for kind in kinds:
    inner = [
      tf.function(_random_body(rng, variables, depth - 1))
      for _ in range(2 if depth else 0)
    ]
    factor = float(rng.integers(-2, 3)) / 2.0
    plan.append((kind, factor, inner, variables[rng.integers(len(variables))]))

  def body(x):
    for kind, factor, inner, variable in plan:
      if kind == "scale":
        x = x * factor + 0.25
      elif kind == "add":
        x = x + variable
      elif kind == "effect":
        variable.assign(variable * 0.5 + x)
      elif kind == "call":
        x = inner[0](x) - inner[1](x)
      elif kind == "ignore":
        x = x + inner[0](tf.constant(factor))
      elif kind == "cond":
        x = tf.cond(
          x > factor,
          lambda x=x, f=inner[0]: f(x),
          lambda x=x, f=inner[1]: f(x + 1.0),
        )
      else:
        _, x = tf.while_loop(
          lambda i, x: i < 3,
          lambda i, x, f=inner[0]: (i + 1, 0.5 * tf.tanh(f(x))),
          (tf.constant(0), x),
        )
    return x

  return body


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_gives_the_same_numbers_and_effects(seed):
  rng = np.random.default_rng(seed)
  variables = [tf.Variable(float(i), name=f"v{i}") for i in range(3)]
  body = _random_body(rng, variables, depth=2)

  @tf.function(autograph=False)
  def step(x):
    return body(x), *[v + 0.0 for v in variables]

  concrete = step.get_concrete_function(tf.TensorSpec((), tf.float32))
  traced = trace_function(concrete)
  types = {node.op for node in traced.graph_def.node}
  assert not types & {"PartitionedCall", "StatefulPartitionedCall", "If"}
  kept = {f.signature.name for f in traced.graph_def.library.function}
  assert bool(kept) == bool(types & {"While", "StatelessWhile"})
  inputs = [float(x) for x in rng.normal(size=6)]
  (feed,) = [f.tensor for f in traced.feeds.values()]
  mine = run_steps(traced, [{feed: x} for x in inputs])
  theirs = [[t.numpy() for t in concrete(tf.constant(x))] for x in inputs]
  np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
