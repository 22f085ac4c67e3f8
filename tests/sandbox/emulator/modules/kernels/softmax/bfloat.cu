// A row of bf16 per CTA.
#include <cuda_bf16.h>

extern "C" __global__ void softmax(const __nv_bfloat16* x, __nv_bfloat16* out, int columns) {
  __shared__ float parts[32];
  x += blockIdx.x * columns;
  out += blockIdx.x * columns;
  float most = -INF, sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, __bfloat162float(x[i]));
  most = largest(most, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(__bfloat162float(x[i]) - most);
  sum = total(sum, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    out[i] = __float2bfloat16_rn(expf(__bfloat162float(x[i]) - most) / sum);
  }
}
