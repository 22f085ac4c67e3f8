// out = relu(x weight^T + bias), a thread for each output. Shape: x (rows, depth), weight (columns, depth).
extern "C" __global__ void linear(const float* x, const float* weight, const float* bias, float* out, int rows, int columns,
                                  int depth) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= columns) return;
  float sum = bias[column];
  for (int k = 0; k < depth; ++k) sum = fmaf(x[row * depth + k], weight[column * depth + k], sum);
  out[row * columns + column] = sum < 0 ? 0 : sum;
}
