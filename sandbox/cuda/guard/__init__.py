"""Device memory that shows stray accesses.

- `mapping.py`: physical pages mapped into a reserved address range, with unmapped space on both sides
- `buffers.py`: operands between canary bands
- `comparing.py`, `comparing.cu`: memory compared with its expected contents, by trusted kernels
- `module_variables.py`: a module's variables, compared with the compiler's initial values
- `fault_log.py`: which buffer an illegal access hit, from the kernel's log
"""
