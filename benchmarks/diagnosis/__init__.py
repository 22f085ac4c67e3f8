"""How often the diagnosis is right: kernels with a known fault. Run: python -m benchmarks.diagnosis

- `__main__`: measures, profiles and diagnoses each kernel, then measures the fix by hand
- `faulty_kernels`: the kernels, with the bottlenecks that the diagnosis should name
- `diagnosis_table`: the result as a record and as tables
- `kernels/`: hand-written CUDA sources whose faults are macros
"""
