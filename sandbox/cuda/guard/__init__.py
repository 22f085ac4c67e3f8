"""Device memory that shows stray accesses.

- `mapping.py`: physical pages mapped into a reserved address range, with unmapped space on both sides
- `buffers.py`: operands between canary bands
- `placement.py`: where buffers and slots lie within their pages, for verification and for timing
- `comparing.py`, `comparing.cu`: memory and a module's variables, compared with their expected contents by trusted kernels
- `fault_log.py`: which buffer an illegal access hit, from the kernel's log
"""
