"""Kernel family `narrow`: few rows of A, or few columns of column-major B, against weights that are read once (sm_90a).

- `narrow.cu`: the CUDA source, with places for a schedule's constants and sections that only some schedules use.
- `schedule.py`: its axes, what a task's operands are to the kernel, and what makes a schedule valid for a task.
- `space.py`: the schedules worth trying for a task.
- `writer.py`: constants, sections and launch plan of a schedule.
- `family.py`: joins them for the schedule policy.
"""
