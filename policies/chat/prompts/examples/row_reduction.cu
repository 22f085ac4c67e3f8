/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "row_mean", "grid": ["ceil(rows/8)", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "rows"}, {"scalar": "columns"}]}]
} */
// Module: out[r] = mean over c of x[r, c]. Dims: rows, columns.
// A warp for each row: lanes read neighbours, shuffles join their sums in a fixed order.
extern "C" __global__ void __launch_bounds__(256) row_mean(const float* __restrict__ x, float* __restrict__ out, int rows, int columns) {
  const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // whole warps leave, so that every shuffle below has all lanes
  const float* from = x + static_cast<long long>(row) * columns;
  float sum = 0;
  for (int i = lane; i < columns; i += 32) sum += from[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) out[row] = sum / columns;
}
