"""Nsight Compute's counters of one candidate. `sandbox/diagnosis` interprets them.

- `profiler.py`: profiles one candidate: ncu in front of a process of this project
- `child.py`: that process, which runs the candidate
- `request.py`: what the two exchange
- `random_operands.py`, `random_values.py`: the operands of a profiled run, and the values of a module's
- `ncu.py`: where ncu is, its version, its command line, its errors; whether this process may read counters
- `reading.py`: ncu's table as records
- `metric_set.py`, `metrics.toml`: what is counted on an arch
"""
