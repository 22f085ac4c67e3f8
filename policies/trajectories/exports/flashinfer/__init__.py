"""Trajectories as a data set of flashinfer-bench (docs/flashinfer_bench.md).

- `flashinfer.py`: which steps become traces, and the files of the data set.
- `bench_records.py`: its records: definitions, workloads, solutions, traces.
- `host_launcher.py`, `host_launcher.cu`: the host side of a kernel in C++, written from its launch plan.
"""
