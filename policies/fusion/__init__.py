"""The policy without a language model for PyTorch modules: a fuser whose kernels are searched and proved.

`graph_values` makes values of a task's graph (`views`, `pointwise`, `norms`, `windows`); `index_algebra` and `expressions` are
what they are written in. `grouping` cuts them into kernels (`programs`) and library calls. `kernel_text` and `writer` write
CUDA C++ for the `axes` of each kernel, which `space` lists; `fused_source` joins source and plan. `policy` proposes.
"""
