"""Kernel family `mma_sync`: cp.async pipeline, swizzled shared memory, ldmatrix, mma.sync m16n8k16 (sm_80 and up).

- `family`: the family as the schedule policy sees it.
- `schedule`: its axes.
- `geometry`: what a schedule means for a task, and whether it can run.
- `space`: the schedules worth trying for a task.
- `writer`: from a schedule to a source with its launch plan.
- `mainloop`, `epilogue`: parts of the source.
"""
