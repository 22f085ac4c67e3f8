/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gelu", "grid": ["ceil(batch_size*dim/1024)", 1, 1], "block": [128, 1, 1], "programmatic": true, "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "batch_size*dim", "type": "i64"}]}]
} */
#include <cudal2/programmatic.cuh>

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3); the exponent in base 2.
__device__ __forceinline__ float gelu_of(float x) {
  constexpr double kFactor = -2.0 * 0.7978845608028654 * 1.4426950408889634;
  constexpr float kLinear = static_cast<float>(kFactor), kCubic = static_cast<float>(kFactor * 0.044715);
  const float exponent = x * __fmaf_rn(x * x, kCubic, kLinear);
  return __fdividef(x, 1.0f + exp2f(exponent));
}

__device__ __forceinline__ float4 gelu_of(float4 v) {
  v.x = gelu_of(v.x);
  v.y = gelu_of(v.y);
  v.z = gelu_of(v.z);
  v.w = gelu_of(v.w);
  return v;
}

extern "C" __global__ void __launch_bounds__(128, 16) gelu(const float* __restrict__ x, float* __restrict__ out, long long count) {
  cudal2::launch_dependents();
  const long long start = 1024LL * blockIdx.x;
  const float4* from = reinterpret_cast<const float4*>(x + start) + threadIdx.x;
  float4* to = reinterpret_cast<float4*>(out + start) + threadIdx.x;
  cudal2::wait_for_dependencies();
  if (start + 1024 <= count) {
    const float4 first = from[0];
    const float4 second = from[128];
    to[0] = gelu_of(first);
    to[128] = gelu_of(second);
  } else {
    for (long long i = start + threadIdx.x; i < count; i += 128) out[i] = gelu_of(x[i]);
  }
}
