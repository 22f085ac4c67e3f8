"""Kernels of reductions: `passes` over rows, the `layouts` that divide rows among threads, and the `row_space` of their axes."""
