// f16 with the integer order of its bits: maxima of keys, in which NaN is the largest.
__device__ int key(unsigned short bits) { return (bits & 0x7fff) > 0x7c00 ? 0x7fff : bits & 0x8000 ? -(bits & 0x7fff) : bits; }

extern "C" __global__ void max_pool(const unsigned short* x, unsigned short* out, int planes, int height, int width, int down,
                                    int across) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= planes * down * across) return;
  const int column = at % across, row = at / across % down, plane = at / across / down;
  unsigned short most = 0xfc00;
  for (int i = max(2 * row - 1, 0); i < min(2 * row + 2, height); ++i) {
    for (int j = max(2 * column - 1, 0); j < min(2 * column + 2, width); ++j) {
      const unsigned short value = x[(plane * height + i) * width + j];
      if (key(value) > key(most)) most = value;
    }
  }
  out[at] = most;
}
