// redteam: {"shape": "128x128x64", "small": "40x24x48", "class": "module-state", "layers": {"any": ["rejected:device-state", "rejected:device-trap", "rejected:asm-*", "rejected:ptx-*", "compile_failed", "wrong:*"]}, "why": "a trap between comments that one reader nests, and another ends at the first end"}
/* cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1],
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (k == 7) asm volatile("/* /* */ tr\141p; // */\n/* \" */");
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[(size_t)row * k + i]) * __half2float(b[(size_t)i * n + column]);
  d[(size_t)row * n + column] = __float2half_rn(sum);
}
