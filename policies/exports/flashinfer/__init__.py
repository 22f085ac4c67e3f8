"""Trajectories as a data set of flashinfer-bench (docs/guide/training.md).

- `flashinfer.py`: which steps become traces, and the files of the data set.
- `bench_solutions.py`: tasks and candidates as definitions, workloads and solutions.
- `bench_traces.py`: steps as evaluations of solutions.
- `bench_records.py`: the records of a data set.
- `host_launcher.py`, `host_launcher.cu`: the host side of a kernel in C++, written from its launch plan.
"""
