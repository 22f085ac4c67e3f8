"""Kernel family `wgmma_tma`: TMA loads, an mbarrier ring, one producer warp, consumer warpgroups with wgmma (sm_90a).

- `family`: the family as the schedule policy sees it.
- `schedule`: its axes, and what makes them valid for a task.
- `space`: the schedules worth trying for a task.
- `writer`: from a schedule to a source with its launch plan.
- `wgmma_tma.cu`: the CUDA source, with constants for a schedule to set.
"""
