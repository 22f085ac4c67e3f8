"""Single launches onto an idle GPU: what they cost beside a kernel, and what can be reached in that mode.

- `floor.py`, `floor.cu`: trivial kernels timed as a server's are, on a GPU
- `pairs.py`: stored schedules that were measured in both modes
- `reach.py`: what offline's times predict for server mode
"""
