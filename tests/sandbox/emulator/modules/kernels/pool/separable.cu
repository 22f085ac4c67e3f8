// Maxima of three neighbours in a row, then of three such rows. Shape: kept (planes, height, across).
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }

extern "C" __global__ void rows(const float* x, float* kept, int lines, int width, int across) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < lines * across; at += gridDim.x * blockDim.x) {
    const int middle = 2 * (at % across);
    const float* line = x + at / across * width;
    float most = line[middle];
    if (middle > 0) most = larger(most, line[middle - 1]);
    if (middle + 1 < width) most = larger(most, line[middle + 1]);
    kept[at] = most;
  }
}

extern "C" __global__ void columns(const float* kept, float* out, int planes, int height, int down, int across) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < planes * down * across; at += gridDim.x * blockDim.x) {
    const int column = at % across, middle = 2 * (at / across % down), plane = at / across / down;
    const float* from = kept + (plane * height + middle) * across + column;
    float most = from[0];
    if (middle > 0) most = larger(most, from[-across]);
    if (middle + 1 < height) most = larger(most, from[across]);
    out[at] = most;
  }
}
