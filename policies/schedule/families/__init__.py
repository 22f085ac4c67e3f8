"""Kernel families: each is one CUDA source, its schedules, and the space of those worth trying.

- `protocol`: what a family offers the schedule policy.
- `registry`: the families of an architecture.
- `mma_sync/`: cp.async and mma.sync, for sm_80 and up.
- `wgmma_tma/`: TMA and wgmma, for sm_90a.
"""
