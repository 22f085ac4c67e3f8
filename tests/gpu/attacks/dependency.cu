// Programmatic launch. WAIT_AT says where it waits for the kernel ahead: 0 first of all (right), 1 after reading
// the operands, 2 after zeroing D, 3 nowhere.
/* cudal2: {"arch": "sm_90a",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1], "programmatic": true,
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>
#include <cudal2/programmatic.cuh>

extern "C" __global__ void hgemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  const bool inside = row < m && column < n;
  half* out = d + row * (size_t)n + column;
  if (WAIT_AT == 2 && inside) *out = __float2half(0);
  if (WAIT_AT == 0 || WAIT_AT == 2) cudal2::wait_for_dependencies();
  float sum = 0;
  for (int i = 0; inside && i < k; ++i) sum += __half2float(a[row * (size_t)k + i]) * __half2float(b[i * (size_t)n + column]);
  if (WAIT_AT == 1) cudal2::wait_for_dependencies();
  cudal2::launch_dependents();
  if (inside) *out = __float2half(sum);
}
