"""VLA models, their processors and checkpoints, the agents that act with them, and training."""
