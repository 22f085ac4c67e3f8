"""A run, from its first round to its result.

`lifecycle`: starts, resumes and ends a run. `graph`: the nodes' order. `nodes`: one stage each. `state`: what travels
between nodes, and the file of checkpoints. `batch_build`: a batch, proposed and compiled in the background. `history`: the
steps so far. `dependencies`: the parts that a run needs. `clock`: time spent. `stopping`: when a search ends. `counters`:
which kernels Nsight Compute profiles. `witnessing`: which kernels the emulator proves beside the GPU.
`measurements`: how candidates are measured. `result`: what the run has come to. `versions`: the packages it ran under.
"""
