/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "relu_gelu", "grid": ["ceil(count/1024)", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "count"}]}]
} */
// Module: out = gelu(relu(x)), count elements. Dims: count.
__device__ float relu_gelu_of(float x) {
  x = x < 0 ? 0 : x;  // NaN stays NaN, as fmaxf would not keep it
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

// A thread has four neighbours: one load and one store of 16 bytes, the end of the array one by one.
extern "C" __global__ void __launch_bounds__(256) relu_gelu(const float* __restrict__ x, float* __restrict__ out, int count) {
  const long long at = 4LL * (blockIdx.x * 256LL + threadIdx.x);
  if (at + 4 <= count) {
    const float4 in = *reinterpret_cast<const float4*>(x + at);
    *reinterpret_cast<float4*>(out + at) = {relu_gelu_of(in.x), relu_gelu_of(in.y), relu_gelu_of(in.z), relu_gelu_of(in.w)};
  } else {
    for (long long i = at; i < count; ++i) out[i] = relu_gelu_of(x[i]);
  }
}
