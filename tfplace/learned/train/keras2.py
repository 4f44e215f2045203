"""The libraries that need Keras 2: TF-GNN, tf-agents, TensorFlow Probability.

Networks and agents take them from here: whatever is imported first of this
package, the check in its `__init__` has come before them.
"""

import tensorflow_gnn as tfgnn
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.agents.ppo import ppo_clip_agent, ppo_utils
from tf_agents.networks import network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step, trajectory

__all__ = [
  "network",
  "ppo_clip_agent",
  "ppo_utils",
  "tensor_spec",
  "tf_agent",
  "tfgnn",
  "tfp",
  "time_step",
  "trajectory",
]
