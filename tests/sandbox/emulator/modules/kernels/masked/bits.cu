// By the bits of the numbers: positive is a clear sign and a magnitude up to infinity; dropping is a mask of all bits.
extern "C" __global__ void masked(const unsigned* x, const unsigned char* drop, unsigned char* above, unsigned* kept,
                                  int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    above[i] = x[i] - 1 < 0x7f800000;
    kept[i] = x[i] & (drop[i] - 1u);
  }
}
