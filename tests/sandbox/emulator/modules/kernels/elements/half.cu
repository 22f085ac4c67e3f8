// Two elements of f16 a thread, in f32 between; the last of an odd number by itself.
#include <cuda_fp16.h>

__device__ float gelu(float x) { return x < 0 ? 0 : x * 0.5f * erfcf(-x * 0.70710678f); }

extern "C" __global__ void gelu_relu(const __half* x, __half* out, int count) {
  const int at = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 1 < count) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(x + at));
    *reinterpret_cast<__half2*>(out + at) = __floats2half2_rn(gelu(two.x), gelu(two.y));
  } else if (at < count) {
    out[at] = __float2half_rn(gelu(__half2float(x[at])));
  }
}
