// A warp per column; squares of f32 as an f32 product and what it lost, which f64 adds exactly.
extern "C" __global__ void square_sum(const float* x, double* out, int rows, int columns) {
  const int column = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (column >= columns) return;
  double sum = 0;
  for (int row = threadIdx.x % 32; row < rows; row += 32) {
    const float value = x[row * columns + column], square = value * value;
    sum += isinf(square) ? square : (double)square + fmaf(value, value, -square);
  }
  sum = warp_total(sum);
  if (threadIdx.x % 32 == 0) out[column] = sum;
}
