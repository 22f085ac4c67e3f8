"""Other makers of kernels beside cuBLASLt-AutoTuning, in one run, by this project's timer.

- `__main__.py`: a run over shapes in a worker process, which is started again after a crash or a hang
- `shapes.py`: the shapes
- `comparing.py`: one shape: every peer's best kernel in the same paired rounds
- `judging.py`: whether outputs are right; `kernel_lane.py`: the time of launches that no graph can hold
- `lt_search.py`: cuBLASLt beyond its suggestions: configurations of its algorithms, found by coordinate descent
- `triton_peer.py`, `triton_kernel.py`: Triton over a list of configurations
- `library_peers.py`: shared libraries: CUTLASS's collective builder, the CUDA-L2 paper's kernels
- `own_peer.py`: this project's kernels, from the rows of a campaign
- `deep_gemm_peer.py`: DeepGEMM in BF16, from a folder
- `libraries/`: builds what the peers need ahead of a run
- `supervision.py`, `worker.py`: the worker process, and who restarts it
- `table.py`: the result as Markdown
"""
