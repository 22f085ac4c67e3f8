// An element at a time, in strides of the grid.
extern "C" __global__ void gelu_relu(const float* x, float* out, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float positive = x[i] < 0 ? 0 : x[i];
    out[i] = positive * normcdff(positive);
  }
}
