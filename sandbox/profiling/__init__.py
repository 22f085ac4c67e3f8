"""Profiling: Nsight Compute's counters of one candidate, and what they mean."""
