// A row per warp by ex2.approx of what is scaled by log2(e), and by rcp.approx.
__device__ float power(float x) {
  float made;
  asm("ex2.approx.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += row * columns;
  out += row * columns;
  const float log2e = 1.44269504f;
  float most = -INF, sum = 0, scale;
  for (int i = lane; i < columns; i += 32) most = fmaxf(most, x[i]);
  most = warp_most(most);
  for (int i = lane; i < columns; i += 32) sum += power((x[i] - most) * log2e);
  sum = warp_total(sum);
  asm("rcp.approx.f32 %0, %1;" : "=f"(scale) : "f"(sum));
  for (int i = lane; i < columns; i += 32) out[i] = power((x[i] - most) * log2e) * scale;
}
