"""Risk-seeking policy gradient: the best of the samples teach.

What a placer keeps is the best of its draws, not their mean (Petersen et al.,
"Deep symbolic regression", ICLR 2021).
"""

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


def margins(rewards: tf.Tensor, share: float) -> tf.Tensor:
  """What those of the elite are above the best of the others; others have 0.

  Args:
    rewards: [B] or [B, 1], of one graph's samples.
    share: of the samples that are the elite, in (0, 1]; 1 leaves the rewards
      as they are.
  """
  if share >= 1.0:
    return rewards
  ranked = tf.sort(tf.reshape(rewards, [-1]), direction="DESCENDING")
  count = tf.cast(tf.size(ranked), tf.float32)
  kept = tf.cast(tf.round(share * count), tf.int32)
  rest = ranked[tf.clip_by_value(kept, 1, tf.size(ranked) - 1)]
  return tf.maximum(rewards - rest, 0.0)
