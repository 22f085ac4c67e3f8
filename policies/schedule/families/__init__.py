"""Kernel families: each is one CUDA source, its schedules, and the space of those worth trying.

- `kernel_family.py`: what a family is to the schedule policy.
- `template.py`: fills a family's CUDA source with the constants and sections of a schedule.
- `registry.py`: the families of an architecture.
- `mma_sync/`: cp.async and mma.sync, for sm_80 and up.
- `latency/`: all operands at once, mma.sync, pushed sums, for small outputs on sm_90a.
- `wgmma_tma/`: TMA and wgmma, for sm_90a.
- `resident/`: TMA and wgmma with A in registers, for large outputs with short K on sm_90a.
"""
