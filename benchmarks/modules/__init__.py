"""Modules: what their bounds accept of right and wrong programs, and KernelBench's tasks measured on GPUs.

`__main__.py`, `programs.py`: right and wrong programs over a folder of problems, without a GPU.
`traced.py`: problems traced for a machine that measures. `kernelbench.py`: measures them: `queueing.py` orders tasks,
`crew.py` runs workers, `measuring.py` is a worker, `turns.py` gives one that times the GPU alone. `rows.py`, `summary.py`: rows
and their tables, `page.py` the page of results, `counters.py` what holds kernels back. `by_hand.py`: kernels written by hand.
`published.py`: kernels that others published, by the same ruler.
"""
