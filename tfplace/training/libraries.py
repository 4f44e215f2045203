"""Libraries that need Keras 2, behind the check of the process."""

from tfplace.training.process import check_training_process

check_training_process()

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
