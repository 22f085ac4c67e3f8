"""What programs pay for the kernels of a library."""
