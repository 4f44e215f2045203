"""Training of learned placers by imitation and reinforcement learning.

Import libraries that need Keras 2 from here: it checks first that this is a
training process.
"""

from tfplace.learned import training_process

training_process.check_training_process()

import tensorflow_gnn as tfgnn  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402
from tf_agents.agents.ppo import ppo_clip_agent  # noqa: E402
from tf_agents.networks import network  # noqa: E402
from tf_agents.specs import tensor_spec  # noqa: E402
from tf_agents.trajectories import (  # noqa: E402
  time_step,
  trajectory,
)

__all__ = [
  "network",
  "ppo_clip_agent",
  "tensor_spec",
  "tfgnn",
  "tfp",
  "time_step",
  "trajectory",
]
