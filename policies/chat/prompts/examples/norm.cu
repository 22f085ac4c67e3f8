/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "layer_norm", "grid": ["rows", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "weight"}, {"tensor": "bias"}, {"tensor": "out", "access": "write"},
   {"scalar": "columns"}, {"scalar": "1e-5", "type": "f32"}]}]
} */
// Module: out = layer_norm(x) over columns, with weight and bias. Dims: rows, columns.
// The sum over all threads of a CTA of 8 warps, known to all of them.
__device__ float total(float value, float* parts) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < 8; ++warp) value += parts[warp];
  __syncthreads();  // parts may be written again
  return value;
}

// A CTA for each row. The variance is taken around the mean: E[x*x] - mean*mean cancels and fails where the mean is large.
extern "C" __global__ void __launch_bounds__(256)
layer_norm(const float* x, const float* weight, const float* bias, float* out, int columns, float eps) {
  __shared__ float parts[8];
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += 256) sum += x[row + i];
  const float mean = total(sum, parts) / columns;
  for (int i = threadIdx.x; i < columns; i += 256) squares += (x[row + i] - mean) * (x[row + i] - mean);
  const float scale = rsqrtf(total(squares, parts) / columns + eps);
  for (int i = threadIdx.x; i < columns; i += 256) out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
}
