"""Matrix products and convolutions: which are computed otherwise, and kernels of our own by tiles, with what follows them.

- `linear.py`: sums over a product that are computed without it
- `direct.py`: products that are reductions or windows
- `attention.py`: attention as two products around a softmax
- `contraction.py`: a product as one sum over index maps
- `operand_copies.py`: how a tile of an operand is copied
- `tiles.py`: how a product is divided among CTAs and threads
- `tile_kernel.py`: the kernel and what is stored of its sums, over the C++ of `mainloops.py`
- `warpgroup_kernel.py`: the same by the matrix instructions of warpgroups, with TMA
- `winograd_kernel.py`: convolutions of three taps by minimal filtering, over the C++ of `winograd_loops.py`
"""
