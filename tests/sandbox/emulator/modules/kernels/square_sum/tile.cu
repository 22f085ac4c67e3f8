// Sums of squares in f64, strided over the first dimension. Shape: x (rows, columns) f32, out (columns,) f64.
extern "C" __global__ void square_sum(const float* x, double* out, int rows, int columns) {
  __shared__ double sums[8][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  double sum = 0;
  if (column < columns) {
    for (int row = threadIdx.y; row < rows; row += 8) sum += (double)x[row * columns + column] * x[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= columns) return;
  for (int i = 1; i < 8; ++i) sum += sums[i][threadIdx.x];
  out[column] = sum;
}
