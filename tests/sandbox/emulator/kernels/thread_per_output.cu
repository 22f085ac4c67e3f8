// One thread per output; the time must grow with K.
/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "simple",
 "grid": ["ceil(N/64)", "M", 1], "block": [64, 1, 1],
 "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

extern "C" __global__ void simple(const half* a, const half* b, half* d, int m, int n, int k) {
  int col = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
  if (col >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + col]);
  d[row * n + col] = __float2half(sum);
}
