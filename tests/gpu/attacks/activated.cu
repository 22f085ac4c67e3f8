// D = gelu(A B). FAULT says what is wrong: 0 nothing, 1 the activation is left out, 2 every other launch leaves D as it was,
// 3 it is the approximation by tanh, 4 it is left out in one tile.
/* cudal2: {"arch": "sm_80",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

extern "C" __global__ void hgemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  if (FAULT == 2 && __half_as_ushort(a[0]) & 1) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * (size_t)k + i]) * __half2float(b[i * (size_t)n + column]);
  float value = 0.5f * sum * erfcf(-0.70710678f * sum);
  if (FAULT == 3) value = 0.5f * sum * (1.0f + tanhf(0.79788456f * (sum + 0.044715f * sum * sum * sum)));
  if (FAULT == 1 || (FAULT == 4 && blockIdx.x == 1 && blockIdx.y == 2)) value = sum;
  d[row * (size_t)n + column] = __float2half(value);
}
