// A row of f16 per warp, two elements at a time; sums and exponentials in f32. Columns: even.
#include <cuda_fp16.h>

extern "C" __global__ void softmax(const __half2* x, __half2* out, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, pairs = columns / 2;
  if (row >= rows) return;
  x += row * pairs;
  out += row * pairs;
  float most = -INF, sum = 0;
  for (int i = lane; i < pairs; i += 32) {
    const float2 two = __half22float2(x[i]);
    most = fmaxf(most, fmaxf(two.x, two.y));
  }
  most = warp_most(most);
  for (int i = lane; i < pairs; i += 32) {
    const float2 two = __half22float2(x[i]);
    sum += expf(two.x - most) + expf(two.y - most);
  }
  sum = warp_total(sum);
  for (int i = lane; i < pairs; i += 32) {
    const float2 two = __half22float2(x[i]);
    out[i] = __floats2half2_rn(expf(two.x - most) / sum, expf(two.y - most) / sum);
  }
}
