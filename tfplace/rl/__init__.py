"""Training of placement policies by imitation and tf-agents PPO.

Every module here needs a training process (`tfplace.policies.keras2`).
"""
