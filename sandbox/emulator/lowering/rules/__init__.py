"""The rules of lowering, one module per instruction family.

| file | instructions |
|---|---|
| `rules.py` | every rule by opcode; branches and exits |
| `integer.py`, `floating.py`, `compare.py`, `convert.py` | arithmetic, logic, set and setp, cvt and mov |
| `warp.py` | shuffles, votes, matches, reductions |
| `memory.py` | loads, stores, atomics, addresses of peers |
| `copy.py`, `barrier.py` | asynchronous copies; barriers, mbarriers, fences |
| `matrix.py`, `wmma.py`, `wgmma.py` | tensor cores, and operands of fragments |
"""
