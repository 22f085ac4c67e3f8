"""Kernel family `latency`: small outputs, all operands of a CTA loaded at once (sm_80 to sm_90a).

- `latency.cu`: the CUDA source, with places for a schedule's constants and sections that only some schedules use.
- `schedule.py`: its axes, and what makes them valid for a task.
- `space.py`: the schedules worth trying for a task.
- `writer.py`: constants, sections and launch plan of a schedule.
- `family.py`: joins them for the schedule policy.
"""
