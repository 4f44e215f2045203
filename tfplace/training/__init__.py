"""Training of policies by imitation and reinforcement learning (Keras 2)."""
