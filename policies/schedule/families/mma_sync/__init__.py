"""Kernel family `mma_sync`: cp.async pipeline, swizzled shared memory, ldmatrix, mma.sync m16n8k16 (sm_80 and up).

- `mma_sync.cu`: the CUDA source, with places for a schedule's constants and sections that only some schedules use.
- `schedule.py`: its axes.
- `geometry.py`: what a schedule means for a task, and whether it can run.
- `space.py`: the schedules worth trying for a task.
- `writer.py`: constants, sections and launch plan of a schedule.
- `family.py`: joins them for the schedule policy.
"""
