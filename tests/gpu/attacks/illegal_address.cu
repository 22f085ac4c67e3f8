// Writes where nothing is mapped.
/* cudal2: {"arch": "sm_80",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * (size_t)k + i]) * __half2float(b[i * (size_t)n + column]);
  d[row * (size_t)n + column] = __float2half(sum);
  if (row == 0 && column == 0) d[(size_t)1 << 44] = __float2half(sum);
}
