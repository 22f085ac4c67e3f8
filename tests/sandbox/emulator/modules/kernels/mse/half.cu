// f16: differences and squares in f32, and one rounding at the end.
#include <cuda_fp16.h>

extern "C" __global__ void mse_loss(const __half* x, const __half* target, __half* out, int count) {
  __shared__ float parts[32];
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float away = __half2float(x[i]) - __half2float(target[i]);
    sum += away * away;
  }
  sum = total(sum, parts);
  if (threadIdx.x == 0) *out = __float2half_rn(sum / count);
}
