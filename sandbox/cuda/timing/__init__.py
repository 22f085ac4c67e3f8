"""Measurement of a candidate against its baselines.

- `timer.py`: a whole measurement, round by round
- `sample_plan.py`: what is decided before the GPU is touched: operand sets, launches, pairs, order, arrival times
- `sampling.py`: one sample, offline or server
- `track.py`: the memory that all contenders of a task run over, before and after a sample; overwrites what one could leave
- `operand_pools.py`: the pools of A and B; the outputs and workspaces
- `outputs.py`, `drawn_lines.py`: checks of the outputs of a timed sample
- `watch.py`, `aftermath.py`: checks around every sample of a candidate, and of drawn launches after the rounds
- `baseline_watch.py`: checks of the baselines' samples
- `cuda_graph.py`: back-to-back launches as a CUDA graph
- `telemetry.py`: clocks, temperature, power and throttle reasons
- `trusted_timing.py`, `trusted_timing.cu`: the trusted kernels that fill and check memory
"""
