"""Kernels executed and proved without a GPU: PTX parsed, lowered and run by a warp-vectorised interpreter."""
