"""The sequence-to-sequence model against NumPy, one number at a time."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.learned.sequence.seq2seq import NEVER, Lstm, Seq2Seq

UNITS, INPUTS, DEVICE_FEATURES, STEPS, DEVICES = 6, 5, 4, 7, 3
VARIANTS = [{"is_bidirectional": True}, {"is_bidirectional": False}]


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def lstm_reference(lstm, steps, h, c):
  """[S, F] -> [S, units], h, c; gates input, forget, cell, output."""
  kernel, bias = lstm.kernel.numpy(), lstm.bias.numpy()
  states = []
  for x in steps:
    i, f, g, o = np.split(np.concatenate((x, h)) @ kernel + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    states.append(h)
  return np.array(states), h, c


def reference(model, x, device, allowed, choices):
  """[S, D] logits of one placement, step after step."""
  width = model._encoders[0].units
  zero = np.zeros(width)
  found = [lstm_reference(model._encoders[0], x, zero, zero)]
  if len(model._encoders) > 1:
    states, h, c = lstm_reference(model._encoders[1], x[::-1], zero, zero)
    found.append((states[::-1], h, c))
  states, h, c = (
    np.concatenate(parts, -1) for parts in zip(*found, strict=True)
  )
  signals = device @ model._device.numpy()
  keys = device @ model._softmax.numpy()
  memory = states @ model._memory.numpy()
  result, signal = [], model._first.numpy()[0]
  for step, choice in enumerate(choices):
    signal = np.concatenate((signal, states[step]))
    _, h, c = lstm_reference(model._decoder, signal[None], h, c)
    score = [
      float(np.tanh(h @ model._query.numpy() + m) @ model._score.numpy()[:, 0])
      for m in memory
    ]
    weight = np.exp(score) / np.exp(score).sum()
    logits = keys @ np.concatenate((h, weight @ memory))
    result.append(np.where(allowed[step], logits, NEVER))
    signal = signals[choice]
  return np.array(result)


def arrays(batch, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(batch, STEPS, INPUTS)).astype(np.float32)
  device = rng.normal(size=(DEVICES, DEVICE_FEATURES)).astype(np.float32)
  allowed = rng.random((batch, STEPS, DEVICES)) < 0.7
  allowed[..., 1] = True
  choices = rng.integers(0, DEVICES, (batch, STEPS)).astype(np.int32)
  return x, device, allowed, choices


def model_of(**variant):
  tf.keras.utils.set_random_seed(0)
  return Seq2Seq(UNITS, INPUTS, DEVICE_FEATURES, **variant)


def test_the_kernel_is_the_step_again_and_again():
  tf.keras.utils.set_random_seed(1)
  lstm = Lstm(3, 4)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(5, 2, 3)).astype(np.float32)
  h = c = rng.normal(size=(2, 4)).astype(np.float32)
  states, last_h, last_c = lstm.sequence(x, h, c)
  for step in x:
    h, c = lstm.step(step, h, c)
  np.testing.assert_allclose(last_h, h, atol=1e-6)
  np.testing.assert_allclose(last_c, c, atol=1e-6)
  np.testing.assert_allclose(states[-1], h, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_logits_equal_the_reference(variant):
  model = model_of(**variant)
  x, device, allowed, choices = arrays(batch=2)
  found = model.logits(x, device, allowed, choices).numpy()
  for row in range(2):
    expected = reference(model, x[row], device, allowed[row], choices[row])
    np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_attention_sums_to_1_and_favors_what_is_asked_for():
  model = model_of()
  h = np.zeros((1, 1, UNITS), np.float32)
  memory = np.random.default_rng(0).normal(size=(1, STEPS, UNITS))
  weight, context = model.attend(h, tf.constant(memory, tf.float32))
  score = np.tanh(memory[0]) @ model._score.numpy()[:, 0]
  expected = np.exp(score) / np.exp(score).sum()
  np.testing.assert_allclose(weight[0, 0], expected, rtol=1e-5)
  np.testing.assert_allclose(context[0, 0], expected @ memory[0], rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_is_decoded_is_the_best_of_logits_and_noise(variant):
  model = model_of(**variant)
  x, device, allowed, _ = arrays(batch=1)
  noise = np.random.default_rng(1).gumbel(size=(9, STEPS, DEVICES))
  noise = noise.astype(np.float32)
  noise[0] = 0
  found = model.decode(x, device, allowed, noise).numpy()
  logits = model.logits(x, device, allowed, found).numpy()
  assert found.tolist() == (logits + noise).argmax(axis=-1).tolist()
  assert allowed[0][np.arange(STEPS), found].all()
  assert len(np.unique(found, axis=0)) > 1


def test_a_decision_sees_the_choices_before_it_and_no_others():
  model = model_of()
  x, device, allowed, choices = arrays(batch=1)
  allowed[:] = True
  before = model.logits(x, device, allowed, choices).numpy()
  changed = choices.copy()
  changed[0, 3] = (changed[0, 3] + 1) % DEVICES
  after = model.logits(x, device, allowed, changed).numpy()
  assert (before[0, :4] == after[0, :4]).all()
  assert (before[0, 4:] != after[0, 4:]).any(axis=-1).all()
