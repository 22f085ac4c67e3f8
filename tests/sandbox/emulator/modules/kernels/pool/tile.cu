// A tile of 8 x 8 outputs per CTA; the 17 x 17 inputs that it needs lie in shared memory, those outside as -inf.
extern "C" __global__ void max_pool(const float* x, float* out, int planes, int height, int width, int down, int across) {
  __shared__ float tile[17][18];
  const int plane = blockIdx.z, top = 16 * blockIdx.y - 1, left = 16 * blockIdx.x - 1;
  const int row = 8 * blockIdx.y + threadIdx.y, column = 8 * blockIdx.x + threadIdx.x;
  for (int at = threadIdx.y * 8 + threadIdx.x; at < 17 * 17; at += 64) {
    const int i = top + at / 17, j = left + at % 17;
    const bool inside = i >= 0 && j >= 0 && i < height && j < width;
    tile[at / 17][at % 17] = inside ? x[(plane * height + i) * width + j] : -INF;
  }
  __syncthreads();
  if (row >= down || column >= across) return;
  float most = -INF;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const float value = tile[2 * threadIdx.y + i][2 * threadIdx.x + j];
      most = value > most || value != value ? value : most;
    }
  }
  out[(plane * down + row) * across + column] = most;
}
