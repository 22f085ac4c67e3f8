"""Device memory that shows stray accesses.

- `mapping.py`: physical pages mapped into a reserved address range, with unmapped space on both sides
- `buffers.py`: operands between canary bands
- `comparing.py`, `comparing.cu`: memory and a module's variables, compared with their expected contents by trusted kernels
- `fault_log.py`: which buffer an illegal access hit, from the kernel's log
"""
