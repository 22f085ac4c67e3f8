// Running sums of 64-bit integers: lanes by shuffles, warps in turn.
extern "C" __global__ void row_scan(const long long* x, long long* out, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  long long carried = 0;
  for (int from = 0; from < columns; from += 32) {
    long long value = from + lane < columns ? x[row * columns + from + lane] : 0;
    for (int step = 1; step < 32; step *= 2) {
      const long long before = __shfl_up_sync(0xffffffff, value, step);
      if (lane >= step) value += before;
    }
    value += carried;
    if (from + lane < columns) out[row * columns + from + lane] = value;
    carried = __shfl_sync(0xffffffff, value, 31);
  }
}
