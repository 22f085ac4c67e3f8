// A plain correct kernel: one thread an output. COLUMN_MAJOR_B for layout tn, COLUMN_MAJOR_A for nt, BF16 for bf16 elements.
/* cudal2: {"arch": "sm_80",
 "launches": [{"entry": "hgemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
   "args": [
            {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef BF16
using element = __nv_bfloat16;
__device__ float widen(element x) { return __bfloat162float(x); }
__device__ element narrow(float x) { return __float2bfloat16(x); }
#else
using element = half;
__device__ float widen(element x) { return __half2float(x); }
__device__ element narrow(float x) { return __float2half(x); }
#endif

extern "C" __global__ void hgemm(const element* a, const element* b, element* d, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) {
#ifdef COLUMN_MAJOR_A
    const size_t in_a = i * (size_t)m + row;
#else
    const size_t in_a = row * (size_t)k + i;
#endif
#ifdef COLUMN_MAJOR_B
    const size_t in_b = column * (size_t)k + i;
#else
    const size_t in_b = i * (size_t)n + column;
#endif
    sum += widen(a[in_a]) * widen(b[in_b]);
  }
  d[row * (size_t)n + column] = narrow(sum);
}
