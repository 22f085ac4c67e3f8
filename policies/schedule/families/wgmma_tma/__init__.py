"""Kernel family `wgmma_tma`: TMA loads, an mbarrier ring, one producer warp, consumer warpgroups with wgmma (sm_90a).

- `wgmma_tma.cu`: the CUDA source, with a place for a schedule's constants.
- `schedule.py`: its axes, and what makes them valid for a task.
- `space.py`: the schedules worth trying for a task.
- `writer.py`: constants and launch plan of a schedule.
- `family.py`: joins them for the schedule policy.
"""
