"""From a candidate's source to an inspected artifact, in child processes.

The room is not called `build`: that name is ignored by git here, and by the default settings of ruff and pytest.

- `builder.py`: check, compile and inspect a batch of candidates in parallel
- `check.py`: the static check of source, flags and plan
- `source.py`: C++ source without comments, literals and splices, as the static check reads it
- `compiler.py`: one compilation by NVRTC or nvcc, through the cache
- `compile_child.py`: a process that compiles with NVRTC, in a child that it forks for each compilation
- `compile_log.py`: the part of a compiler's log that may be shown
- `cache.py`: the compile cache
- `headers.py`: include roots and a hash of what lies in them
- `toolchain.py`: NVRTC, nvcc and nvdisasm on this machine, with their versions
"""
