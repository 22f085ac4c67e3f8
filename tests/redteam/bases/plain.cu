// D = A B without tensor cores: a thread for each output.
#include <cuda_fp16.h>
/*{includes}*/
/*{widen:}*/
__device__ __forceinline__ float widen(half x) { return __half2float(x); }
/*{:}*/
/*{narrow:}*/
__device__ __forceinline__ half narrow(float sum) { return __float2half_rn(sum); }
/*{:}*/
/*{head}*/

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k/*{parameters}*/) {
  int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16, k_end = k;
  /*{first}*/
  if (row >= m || column >= n) return;
  /*{declared:}*/float sum = 0;/*{:}*/
  for (int i = 0; i < k_end; ++i) {
    /*{product:}*/sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);/*{:}*/
  }
  /*{summed}*/
  /*{store:}*/d[(size_t)row * n + column] = narrow(sum);/*{:}*/
  /*{last}*/
}
/*{tail}*/
