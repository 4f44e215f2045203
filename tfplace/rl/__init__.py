"""Training of the learned placers with tf-agents PPO."""
