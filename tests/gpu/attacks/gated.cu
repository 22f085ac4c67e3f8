// D = silu(A B) (A up), with B and up stored N x K. FAULT says what is wrong: 0 nothing, 1 B and up are exchanged, 2 B is read
// twice, 3 the activation is left out, 4 it is of the product of both, 5 up is that of the next column, 6 the last row lacks
// the second factor, 7 the activation is of a rounded sum, 8 every other launch leaves D as it was.
/* cudal2: {"arch": "sm_80",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "up"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

#ifndef FAULT
#define FAULT 0
#endif

__device__ float silu(float x) { return x / (1.0f + expf(-x)); }

extern "C" __global__ void hgemm(const half* a, const half* b, const half* up, half* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  if (FAULT == 8 && __half_as_ushort(a[0]) & 1) return;
  const half* gate_of = b + column * (size_t)k;
  const half* up_of = up + (FAULT == 5 && column + 1 < n ? column + 1 : column) * (size_t)k;
  if (FAULT == 1) {
    gate_of = up_of;
    up_of = b + column * (size_t)k;
  }
  if (FAULT == 2) up_of = gate_of;
  float gate = 0, factor = 0;
  for (int i = 0; i < k; ++i) {
    const float left = __half2float(a[row * (size_t)k + i]);
    gate += left * __half2float(gate_of[i]);
    factor += left * __half2float(up_of[i]);
  }
  if (FAULT == 7) gate = __half2float(__float2half(gate));
  float value = silu(gate) * factor;
  if (FAULT == 3) value = gate * factor;
  if (FAULT == 4) value = silu(gate * factor);
  if (FAULT == 6 && row == m - 1) value = silu(gate);
  d[row * (size_t)n + column] = __float2half(value);
}
