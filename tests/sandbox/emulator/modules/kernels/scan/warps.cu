// Sums along a row up to each element: a row per CTA, in pieces of a CTA's threads.
extern "C" __global__ void row_scan(const float* x, float* out, int columns) {
  __shared__ float sums[32];
  __shared__ float carried;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  if (threadIdx.x == 0) carried = 0;
  __syncthreads();
  for (int from = 0; from < columns; from += blockDim.x) {
    const int at = from + threadIdx.x;
    float value = at < columns ? x[at] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(0xffffffff, value, step);
      if (lane >= step) value += before;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    float before = carried;
    for (int i = 0; i < warp; ++i) before += sums[i];
    if (at < columns) out[at] = before + value;
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) carried = before + value;
    __syncthreads();
  }
}
