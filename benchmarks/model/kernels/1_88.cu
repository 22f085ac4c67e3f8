/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gelu", "grid": ["ceil(batch_size*dim/2048)", 1, 1], "block": [512, 1, 1], "programmatic": true, "args": [
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

extern "C" __global__ void __launch_bounds__(512, 4) gelu(const float* __restrict__ x, float* __restrict__ out, long long count) {
  cudal2::launch_dependents();
  const long long at = 2048LL * blockIdx.x + 4 * threadIdx.x;
  cudal2::wait_for_dependencies();
  if (at + 4 <= count) {
    float4 v = __ldcs(reinterpret_cast<const float4*>(x + at));
    v.x = gelu_of(v.x);
    v.y = gelu_of(v.y);
    v.z = gelu_of(v.z);
    v.w = gelu_of(v.w);
    *reinterpret_cast<float4*>(out + at) = v;
  } else {
    for (long long i = at; i < count; ++i) out[i] = gelu_of(x[i]);
  }
}
