/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [
  {"call": "mm", "inputs": [{"tensor": "x"}, {"tensor": "linear_weight", "permute": [1, 0]}], "out": {"tensor": "product"}},
  {"entry": "bias_norm_relu", "grid": ["ceil(rows/8)", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "product"}, {"tensor": "linear_bias"}, {"tensor": "norm_weight"}, {"tensor": "norm_bias"},
   {"tensor": "out", "access": "write"}, {"scalar": "rows"}, {"scalar": "columns"}, {"scalar": "1e-5", "type": "f32"}]}],
 "scratch": [{"name": "product", "shape": ["rows", "columns"], "element": "f32"}]
} */
// Module: out = relu(layer_norm(linear(x))); x is rows x depth, linear_weight columns x depth. Dims: rows, columns, depth.
// The library multiplies without the bias; one kernel does all that follows, a warp for each row.
__device__ float total(float value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

extern "C" __global__ void __launch_bounds__(256) bias_norm_relu(const float* product, const float* bias, const float* weight,
    const float* shift, float* out, int rows, int columns, float eps) {
  const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  product += static_cast<long long>(row) * columns;
  out += static_cast<long long>(row) * columns;
  float sum = 0, squares = 0;
  for (int i = lane; i < columns; i += 32) sum += product[i] + bias[i];
  const float mean = total(sum) / columns;
  for (int i = lane; i < columns; i += 32) {
    const float away = product[i] + bias[i] - mean;
    squares += away * away;
  }
  const float scale = rsqrtf(total(squares) / columns + eps);
  for (int i = lane; i < columns; i += 32) {
    const float value = (product[i] + bias[i] - mean) * scale * weight[i] + shift[i];
    out[i] = value < 0 ? 0 : value;
  }
}
