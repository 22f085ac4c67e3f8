"""Kernels of reductions: `passes` over rows, `layouts` of rows among threads, and the `row_space` of their axes.

`kernel_body`: what they share with kernels without a reduction; `window_kernel`: a pool, whose columns are reduced first.
"""
