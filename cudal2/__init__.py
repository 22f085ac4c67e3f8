"""Kernels of a library, launched from Python and C++ without the agent that found them.

- `launcher/`: a built kernel as launches on a stream
"""
