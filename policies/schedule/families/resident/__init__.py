"""Kernel family `resident`: A stays in registers for all of K while B streams past it (sm_90a, K up to 512, large outputs).

- `resident.cu`: the CUDA source, with a place for a schedule's constants.
- `schedule.py`: its axes, and what makes them valid for a task.
- `space.py`: the schedules worth trying for a task.
- `writer.py`: constants and launch plan of a schedule.
- `family.py`: joins them for the schedule policy.
"""
