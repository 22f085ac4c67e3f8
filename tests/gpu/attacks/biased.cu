// D = A B + bias with programmatic launch. FAULT says what is wrong: 0 nothing, 1 the bias is read before the wait for the kernel
// ahead, 2 it is that of the next column, 3 it is left out in the last row.
/* cudal2: {"arch": "sm_90a",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1], "programmatic": true,
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "bias"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>
#include <cudal2/programmatic.cuh>

extern "C" __global__ void hgemm(const half* a, const half* b, const half* bias, half* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  const bool inside = row < m && column < n;
  const volatile unsigned short* added = reinterpret_cast<const unsigned short*>(bias) + (FAULT == 2 ? (column + 1) % n : column);
  float sum = 0;
  if (FAULT == 1 && inside) sum = __half2float(__ushort_as_half(*added));
  cudal2::wait_for_dependencies();
  cudal2::launch_dependents();
  if (FAULT != 1 && inside && !(FAULT == 3 && row == m - 1)) sum = __half2float(__ushort_as_half(*added));
  for (int i = 0; inside && i < k; ++i) sum += __half2float(a[row * (size_t)k + i]) * __half2float(b[i * (size_t)n + column]);
  if (inside) d[row * (size_t)n + column] = __float2half(sum);
}
