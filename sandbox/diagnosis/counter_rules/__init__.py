"""Rules on counters, one module per subject.

- `counted.py`: the counters of a launch as the rules read them, and what a rule is
- `throughput.py`: full resources: tensor pipe, DRAM, L2, shared memory
- `stalls.py`: what warps wait for
- `traffic.py`: unnecessary traffic
- `spread.py`: distribution of the work over the SMs
- `instructions.py`: issued instructions and occupancy
"""
