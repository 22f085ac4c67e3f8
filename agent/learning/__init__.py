"""What learns outside a run: the sandbox as an environment of reinforcement learning, and calibration of a new GPU."""
