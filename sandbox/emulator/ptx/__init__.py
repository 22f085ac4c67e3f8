"""PTX text as records: what NVRTC and nvcc emit, inline assembly included."""
