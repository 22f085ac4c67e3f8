"""A built kernel as launches on a stream, at the host cost of a few driver calls.

- `launcher.py`: what a launcher is, and the choice between the two
- `loaded_kernel.py`: a kernel before and after it is loaded, which both launchers share
- `compiled.py`: the launcher in C++; `_native` is the compiled module of `native/`
- `interpreted.py`, `driver_types.py`: the same in Python, for machines where the C++ part was not built
- `planned_launches.py`: the launches of a plan in Python; `module_kernels.py`: those of a module, with library calls between
- `lt_algorithms.py`, `cublaslt_names.json`: algorithms of cuBLASLt as the launcher in C++ takes them; it runs them by
  `native/cublaslt.hpp`
- `native/driver.hpp`, `native/kernel.hpp`: the launcher itself, which `library export` writes as one header
"""
