"""The memory of every attempt: the trajectory store and its exports."""
