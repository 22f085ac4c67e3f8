// 16 x 16 outputs per CTA; two stages of shared memory, which cp.async fills one ahead, zeros outside.
__device__ void copy(float* to, const float* from, bool inside) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

extern "C" __global__ void linear(const float* x, const float* weight, const float* bias, float* out, int rows, int columns,
                                  int depth) {
  __shared__ float a[2][16][17], b[2][16][17];
  const int row = 16 * blockIdx.y + threadIdx.y, other = 16 * blockIdx.x + threadIdx.y, column = 16 * blockIdx.x + threadIdx.x;
  const int pieces = (depth + 15) / 16;
  float sum = 0;
  for (int next = 0; next <= pieces; ++next) {
    if (next < pieces) {
      const int k = 16 * next + threadIdx.x;
      const bool left = row < rows && k < depth, right = other < columns && k < depth;
      copy(&a[next % 2][threadIdx.y][threadIdx.x], left ? x + row * depth + k : x, left);
      copy(&b[next % 2][threadIdx.y][threadIdx.x], right ? weight + other * depth + k : weight, right);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (next == 0) continue;
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    const int stage = (next - 1) % 2;
    for (int i = 0; i < 16; ++i) sum = fmaf(a[stage][threadIdx.y][i], b[stage][threadIdx.x][i], sum);
    __syncthreads();
  }
  if (row >= rows || column >= columns) return;
  sum += bias[column];
  out[row * columns + column] = sum < 0 ? 0 : sum;
}
