// A row of f16 per warp; two elements at a time. Columns: even. A CTA takes rows until none is left.
#include <cuda_fp16.h>

extern "C" __global__ void layer_norm(const __half2* x, const __half2* weight, const __half2* bias, __half2* out, int rows,
                                      int columns, float eps) {
  const int lane = threadIdx.x % 32, pairs = columns / 2;
  for (int row = blockIdx.x * 4 + threadIdx.x / 32; row < rows; row += gridDim.x * 4) {
    float sum = 0, squares = 0;
    for (int i = lane; i < pairs; i += 32) {
      const float2 two = __half22float2(x[row * pairs + i]);
      sum += two.x + two.y;
    }
    const float mean = warp_total(sum) / columns;
    for (int i = lane; i < pairs; i += 32) {
      const float2 two = __half22float2(x[row * pairs + i]);
      squares += (two.x - mean) * (two.x - mean) + (two.y - mean) * (two.y - mean);
    }
    const float scale = rsqrtf(warp_total(squares) / columns + eps);
    for (int i = lane; i < pairs; i += 32) {
      const float2 two = __half22float2(x[row * pairs + i]), w = __half22float2(weight[i]), b = __half22float2(bias[i]);
      out[row * pairs + i] = __floats2half2_rn((two.x - mean) * scale * w.x + b.x, (two.y - mean) * scale * w.y + b.y);
    }
  }
}
