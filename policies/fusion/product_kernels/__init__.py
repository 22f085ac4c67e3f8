"""Products of our own in f32: matrix products and convolutions by tiles, with what follows them computed from the sums.

`operand_copies` writes how a tile of an operand is copied, `tile_kernel` the kernel and what is stored of its sums, over the
C++ of `mainloops`.
"""
