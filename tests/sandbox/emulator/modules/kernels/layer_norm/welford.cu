// A row per warp, read twice: count, mean and squared distances of each lane are merged as Chan, Golub and LeVeque do.
extern "C" __global__ void layer_norm(const float* x, const float* weight, const float* bias, float* out, int rows, int columns,
                                      float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += row * columns;
  out += row * columns;
  float count = 0, mean = 0, squares = 0;
  for (int i = lane; i < columns; i += 32) {
    const float away = x[i] - mean;
    count += 1;
    mean += away / count;
    squares += away * (x[i] - mean);
  }
  for (int step = 16; step; step /= 2) {
    const float others = __shfl_xor_sync(0xffffffff, count, step), all = count + others;
    const float away = __shfl_xor_sync(0xffffffff, mean, step) - mean, more = __shfl_xor_sync(0xffffffff, squares, step);
    const float share = all > 0 ? others / all : 0;
    mean += away * share;
    squares += more + away * away * count * share;
    count = all;
  }
  mean = __shfl_sync(0xffffffff, mean, 0);
  const float scale = rsqrtf(__shfl_sync(0xffffffff, squares, 0) / columns + eps);
  for (int i = lane; i < columns; i += 32) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}
