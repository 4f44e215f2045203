"""The RNN-based placer (Mirhoseini et al. 2017) in training."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.errors import TrainingError
from tfplace.policies import keras2, sampling

keras2.check_training_process()

import tensorflow as tf  # noqa: E402

from tfplace.policies import sequence_export  # noqa: E402
from tfplace.policies.exported import Exportable  # noqa: E402
from tfplace.policies.rnn_network import RnnConfig, RnnNetwork  # noqa: E402
from tfplace.rl.reinforce import Choices  # noqa: E402
from tfplace.rl.sequence_learner import (  # noqa: E402
  Inputs,
  SequenceLearner,
  with_types,
)

MAX_DECISIONS = 512


class RnnLearner(SequenceLearner):
  """One kind of decision: the device of each co-location group."""

  network_type: ClassVar[type] = RnnConfig
  _kinds: ClassVar[tuple[str, ...]] = ("device",)

  def exportable(self) -> Exportable:
    """The network as functions of a problem's embedding."""
    return sequence_export.export_rnn(self.network)

  def _complete(self, config: RnnConfig) -> RnnConfig:
    for task in self._tasks:
      if task.decisions.num_decisions > MAX_DECISIONS:
        name = task.decisions.problem.graph.name
        raise TrainingError(
          f"strategy 'rnn' reads one group after the other, at most"
          f" {MAX_DECISIONS}; graph {name!r} has"
          f" {task.decisions.num_decisions}: merge them with"
          " --max_decisions=256 or fewer"
        )
    return with_types(config, self._tasks)

  def _make_network(self, config: RnnConfig) -> RnnNetwork:
    network = RnnNetwork(config)
    signature = sequence_export.signature(len(config.types))
    self._decode = tf.function(
      network.decode,
      input_signature=[signature, sequence_export.NOISE],
      autograph=False,
    )
    return network

  def _draw(
    self, graph: int, rng: np.random.Generator, samples: int
  ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    seen = self.seen[graph]
    noise = sampling.decoding_noise(
      rng, samples, seen.num_decisions, seen.num_devices
    )
    drawn = self._decode(self._inputs[graph], tf.constant(noise)).numpy()
    return np.zeros((1, 1), np.float32), (drawn,)

  def _to_choices(
    self, graph: int, chosen: tuple[np.ndarray, ...]
  ) -> np.ndarray:
    return chosen[0]

  def _target(self, graph: int) -> tuple[np.ndarray, ...]:
    return (self._tasks[graph].target[None],)

  def _choices(
    self, inputs: Inputs, noise: tf.Tensor, chosen: Sequence[tf.Tensor]
  ) -> list[Choices]:
    logits = self.network.logits(inputs, chosen[0])
    return [Choices(logits, chosen[0], tf.ones_like(logits[..., 0]))]
