/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "row_scan", "grid": ["rows", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "columns"}]}]
} */
// Module: out = cumsum(x) over columns. Dims: rows, columns.
// A CTA for each row, 256 elements at a time: a scan in each warp, the sums of warps before it, and what is carried.
extern "C" __global__ void __launch_bounds__(256) row_scan(const float* x, float* out, int columns) {
  __shared__ float sums[8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x += static_cast<long long>(blockIdx.x) * columns;
  out += static_cast<long long>(blockIdx.x) * columns;
  float carried = 0;
  for (int from = 0; from < columns; from += 256) {
    const int at = from + threadIdx.x;
    float value = at < columns ? x[at] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, value, step);
      if (lane >= step) value += before;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    float before = carried;
    for (int i = 0; i < 8; ++i) {
      if (i < warp) before += sums[i];
      carried += sums[i];
    }
    __syncthreads();  // sums may be written again
    if (at < columns) out[at] = before + value;
  }
}
