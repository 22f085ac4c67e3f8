"""Nsight Compute's counters of one candidate. `sandbox/diagnosis` interprets them.

- `profiler.py`: profiles one candidate: ncu in front of a process of this project
- `child.py`: that process, which runs the candidate
- `request.py`: what the two exchange
- `random_operands.py`: the operands of a profiled run
- `ncu.py`: where ncu is, its version, its command line
- `complaints.py`: ncu's errors, and what follows from them
- `reading.py`: ncu's table as records
- `metric_set.py`, `metrics/`: what is counted on an arch
- `permission.py`: whether this process may read counters
"""
