"""PyTorch modules on a GPU: their verification and timing, beside what matrix products have.

- `tensors.py`: device memory as torch tensors on the worker's stream
- `library.py`: a plan's library calls between its launches
- `module_verifier.py`, `cuda_executor.py`, `guarded_values.py`: the proof of `sandbox/modules` over guarded buffers
- `module_track.py`, `value_pools.py`, `kept.py`: the memory of timed launches, and the references of their outputs
- `torch_program.py`, `torch_baselines.py`: what PyTorch makes of the task's graph
"""
