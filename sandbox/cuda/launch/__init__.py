"""Launches on a stream, made by trusted code.

- `launcher.py`: a resolved plan and a cubin as launches
- `tensor_map.py`: TMA descriptors over the operands
- `host.py`: host candidates, which launch by themselves
- `trusted.py`, `trusted.cu`: the producer before and the consumer after a candidate with programmatic launch
"""
