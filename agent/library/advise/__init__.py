"""What a PyTorch model would gain by a kernel library.

`products`: the matrix products of a model. `recording`: those of a model that runs once. `profiler_trace`: those of a trace of
PyTorch's profiler. `known_kernels`: what was measured, by task, and the chip that advice is for. `library_times`: what
AutoTuning takes, measured or predicted. `gains`: gains with intervals, and their sums. `advice`: product by product and in all.
`search_plan`: the campaigns that would find what is missing.
"""
