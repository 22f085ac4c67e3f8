// Four elements a thread where the size allows, then the rest one by one.
// NaN stays NaN.
__device__ float relu(float x) { return x < 0 ? 0 : x; }

__device__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu_relu(const float* x, float* out, int count) {
  const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 4 <= count) {
    const float4 in = *reinterpret_cast<const float4*>(x + at);
    const float4 made = {gelu(relu(in.x)), gelu(relu(in.y)), gelu(relu(in.z)), gelu(relu(in.w))};
    *reinterpret_cast<float4*>(out + at) = made;
  } else {
    for (int i = at; i < count; ++i) out[i] = gelu(relu(x[i]));
  }
}
