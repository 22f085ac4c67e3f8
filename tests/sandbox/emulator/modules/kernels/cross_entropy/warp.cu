// The mean over rows of log(sum(exp(x))) - x[target]: a warp per row, then one CTA adds them. Targets are 64-bit integers.
extern "C" __global__ void row_loss(const float* x, const long long* target, float* loss, int rows, int classes) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += row * classes;
  float most = -__int_as_float(0x7f800000);
  for (int i = lane; i < classes; i += 32) most = fmaxf(most, x[i]);
  for (int step = 16; step; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
  float sum = 0;
  for (int i = lane; i < classes; i += 32) sum += expf(x[i] - most);
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (lane == 0) loss[row] = logf(sum) - (x[target[row]] - most);
}

extern "C" __global__ void mean_loss(const float* loss, float* out, int rows) {
  float sum = 0;
  for (int i = threadIdx.x; i < rows; i += 32) sum += loss[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x == 0) *out = sum / rows;
}
