"""Golden data: single instructions executed by a GPU. Run: python -m benchmarks.golden_opcodes

- `__main__`: runs all cases of all families and records their outputs
- `golden_device`: one case on the GPU, by plain driver calls
"""
