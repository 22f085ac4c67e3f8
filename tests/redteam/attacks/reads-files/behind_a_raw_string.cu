// redteam: {"shape": "96x80x64", "small": "40x24x48", "class": "reads-files", "layers": {"any": ["rejected:include", "rejected:directive", "compile_failed"]}, "why": "who misses that a string is raw takes the directive for a comment"}
/* cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1],
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

constexpr const char* kText = R"(";
/*)";
#include "CUDAL2_SECRET_FILE"
//*/

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[(size_t)row * k + i]) * __half2float(b[(size_t)i * n + column]);
  d[(size_t)row * n + column] = __float2half_rn(sum);
}
