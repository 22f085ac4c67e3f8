"""Matrix products and convolutions: which are computed otherwise, and kernels of our own by tiles, with what follows them.

- `linear.py`: sums over a product that are computed without it
- `direct.py`: products that are reductions or windows
- `contraction.py`: a product as one sum over index maps
- `operand_copies.py`: how a tile of an operand is copied
- `tile_kernel.py`: the f32 kernel and what is stored of its sums, over the C++ of `mainloops.py`; `tile_text.py`: other types
"""
