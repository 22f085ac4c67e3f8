"""Whether the feedback on seeded faults names what is at fault. Run: python -m benchmarks.repair_feedback

- `rules`: which faults are drawn, and what a feedback must name of each
- `__main__`: proves each fault on the emulator, renders the feedback, judges it and writes the result and a table
"""
