"""The network and its training: imitation, then REINFORCE."""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.training.toy.placer import SIGNATURE, extract
from tfplace.learned.sampling import sample
from tfplace.training.export import as_function
from tfplace.training.learner import (
  IMITATION_RATE,
  Learner,
  Step,
  imitation_loss,
  mean_entropy,
)
from tfplace.training.tasks import log_rewards


@dataclasses.dataclass(frozen=True)
class ToySizes:
  """The network has nothing to choose."""


class ToyNetwork(tf.Module):
  def __init__(self):
    super().__init__()
    self.weight = tf.Variable(0.0)

  def __call__(self, time, allowed):
    return tf.where(allowed, self.weight * time, -1e9)

  def exported_functions(self):
    return {"logits": as_function(self, SIGNATURE)}


class ToyLearner(Learner):
  network_type = ToySizes

  def __init__(self, tasks, config):
    super().__init__(tasks, config)
    self.policy = ToyNetwork()
    self.imitation_optimizer = self._adam(IMITATION_RATE)
    self._optimizer = self._adam(config.learning_rate)

  def _extract(self, task):
    return extract(task.decisions)

  def tracked(self):
    return {**super().tracked(), "optimizer": self._optimizer}

  def imitate(self, graph):
    seen = self.inputs[graph]
    with tf.GradientTape() as tape:
      logits = self.policy(**seen.tensors())
      target = self._tasks[graph].target
      loss = imitation_loss(logits, seen.allowed, target, smoothing=0.01)
    self._descend(tape, loss, self.imitation_optimizer)
    return float(loss)

  def improve(self, graph, rng):
    task, seen = self._tasks[graph], self.inputs[graph].tensors()
    with tf.GradientTape() as tape:
      logits = self.policy(**seen)
      sampled = sample(logits.numpy(), self._config.samples, rng)
      step_us = task.evaluate(sampled)
      rewards = log_rewards(step_us, task.baseline_us)
      log_probs = tf.reduce_sum(
        tf.nn.log_softmax(logits) * tf.one_hot(sampled, logits.shape[1]), [1, 2]
      )
      loss = -tf.reduce_mean((rewards - rewards.mean()) * log_probs)
    self._descend(tape, loss, self._optimizer)
    greedy = logits.numpy().argmax(axis=1).astype(np.int32)
    return Step(
      reward=float(rewards.mean()),
      greedy_us=float(task.evaluate(greedy[None])[0]),
      sample_us=float(np.median(step_us)),
      entropy=mean_entropy(logits.numpy()),
      policy_loss=float(loss),
    )
