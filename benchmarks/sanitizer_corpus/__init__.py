"""What compute-sanitizer finds of the seeded faults. Run: python -m benchmarks.sanitizer_corpus

- `__main__`: launches every kernel under each of the four tools
- `watched_launch`: one launch, as the process that a tool watches
- `sanitizer_table`: the result as a record, and as a table beside GPU and emulator
"""
