"""Committed benchmarks; each result names the command, commit, machine and date that made it."""
