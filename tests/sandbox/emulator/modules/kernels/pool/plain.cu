// Windows of 3 x 3 with stride 2 and padding 1; a thread for each output. Maxima carry NaN.
extern "C" __global__ void max_pool(const float* x, float* out, int planes, int height, int width, int down, int across) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= planes * down * across) return;
  const int column = at % across, row = at / across % down, plane = at / across / down;
  float most = -__int_as_float(0x7f800000);
  for (int i = 2 * row - 1; i < 2 * row + 2; ++i) {
    for (int j = 2 * column - 1; j < 2 * column + 2; ++j) {
      if (i < 0 || j < 0 || i >= height || j >= width) continue;
      const float value = x[(plane * height + i) * width + j];
      if (value > most || isnan(value)) most = value;
    }
  }
  out[at] = most;
}
