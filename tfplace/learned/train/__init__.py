"""Training of learned placers by imitation and reinforcement learning.

Importing any module of this package checks that the process is a training
process (`tfplace.learned.training_process`).
"""

from tfplace.learned import training_process

training_process.check_training_process()
