// The first index of the largest element of a row: a warp for each; NaN is the largest.
extern "C" __global__ void most(const float* x, long long* out, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float best = -INF;
  int where = 0x7fffffff;
  for (int i = lane; i < columns; i += 32) {
    const float value = x[row * columns + i];
    if (where == 0x7fffffff || value > best || (isnan(value) && !isnan(best))) best = value, where = i;
  }
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, best, step);
    const int there = __shfl_xor_sync(0xffffffff, where, step);
    if (there == 0x7fffffff) continue;
    const bool same = other == best || (isnan(other) && isnan(best));
    const bool larger = where == 0x7fffffff || other > best || (isnan(other) && !isnan(best));
    if (larger || (same && there < where)) best = other, where = there;
  }
  if (lane == 0) out[row] = where;
}
