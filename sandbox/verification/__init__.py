"""Proof of a candidate in seven tiers, over an array module (numpy or cupy) and an `Executor` that runs the kernel."""
