// A column per thread; fused multiply-adds of f64.
extern "C" __global__ void square_sum(const float* x, double* out, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
  for (int row = 0; row < rows; ++row) sum = fma((double)x[row * columns + column], (double)x[row * columns + column], sum);
  out[column] = sum;
}
