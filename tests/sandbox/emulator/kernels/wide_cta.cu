// Right for every task. Predicted times should grow with K.
// 256 x 256 outputs per CTA, sizes at run time.
/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "all_k",
 "grid": ["ceil(N/256)", "ceil(M/256)", 1], "block": [256, 1, 1],
 "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

extern "C" __global__ void all_k(const half* a, const half* b, half* d, int m, int n, int k) {
  int col = blockIdx.x * 256 + threadIdx.x;
  if (col >= n) return;
  for (int r = 0; r < 256; r += 16) {
    float sum[16] = {};
    int row = blockIdx.y * 256 + r;
    for (int i = 0; i < k; ++i) {
      float y = __half2float(b[i * n + col]);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float x = row + j < m ? __half2float(a[(row + j) * k + i]) : 0.f;
        sum[j] += x * y;
      }
    }
    for (int j = 0; j < 16; ++j)
      if (row + j < m) d[(row + j) * n + col] = __float2half(sum[j]);
  }
}
