/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "linear_relu", "grid": ["ceil(columns/64)", "ceil(rows/64)", 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "weight"}, {"tensor": "bias"}, {"tensor": "out", "access": "write"},
   {"scalar": "rows"}, {"scalar": "columns"}, {"scalar": "depth"}]}]
} */
// Module: out = relu(x . weight^T + bias); x is rows x depth, weight columns x depth. Dims: rows, columns, depth.
// f32 by fused multiply-adds, since an f32 task may not round to TF32. A CTA has 64 x 64 outputs, a thread 4 x 4 of them; what
// follows the product is computed on the sums in registers, so that the product is never stored.
extern "C" __global__ void __launch_bounds__(256)
linear_relu(const float* x, const float* weight, const float* bias, float* out, int rows, int columns, int depth) {
  __shared__ float a[16][65], b[16][65];  // 65: no two lanes meet in a bank
  const int first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
  const int across = threadIdx.x % 16, down = threadIdx.x / 16;
  float sums[4][4] = {};
  for (int from = 0; from < depth; from += 16) {
    for (int i = down; i < 64; i += 16) {
      const int k = from + across, row = first_row + i, column = first_column + i;
      a[across][i] = row < rows && k < depth ? x[static_cast<long long>(row) * depth + k] : 0.0f;
      b[across][i] = column < columns && k < depth ? weight[static_cast<long long>(column) * depth + k] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      float left[4], right[4];
      for (int i = 0; i < 4; ++i) left[i] = a[k][down * 4 + i], right[i] = b[k][across + 16 * i];
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int row = first_row + down * 4 + i, column = first_column + across + 16 * j;
      if (row >= rows || column >= columns) continue;
      const float value = sums[i][j] + bias[column];
      out[static_cast<long long>(row) * columns + column] = value < 0 ? 0 : value;
    }
  }
}
