"""Kernels executed and proved without a GPU: PTX parsed, lowered and run by a warp-vectorised interpreter.

| file | what is in it |
|---|---|
| `ptx/`, `lowering/` | PTX as records; records as operations of the core |
| `core/`, `core_module.py`, `_core.pyi` | the C++ core, its import, its generated stub |
| `machine.py`, `addressing.py` | memory with operands, tensor maps, launches; where buffers lie in a run |
| `kernel.py`, `chain.py` | a plan's launches and library calls over named buffers, and which may run concurrently |
| `judgement.py`, `detector.py` | findings judged and in words; the names of detectors |
| `waits.py` | who waits where when a run does not end; instructions and addresses in words |
| `executor.py` | the tests' backend: every run under another interleaving of its warps |
| `large/` | what is run of a large task |
| `loading.py` | from a built candidate to a kernel |
| `modules/` | the backend and the proof of PyTorch modules |
| `evaluator.py`, `worker.py` | a candidate's outcome; the worker process |
"""
