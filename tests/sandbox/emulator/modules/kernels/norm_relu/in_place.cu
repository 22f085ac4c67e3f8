// Three launches behind a product: bias in place, moments of rows in f64, then the rest. Shape: moments (rows, 2).
extern "C" __global__ void biased(float* product, const float* bias, int columns, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) product[at] += bias[at % columns];
}

extern "C" __global__ void row_moments(const float* product, float* moments, int rows, int columns, float eps) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  double sum = 0, squares = 0;
  for (int i = 0; i < columns; ++i) sum += product[row * columns + i];
  for (int i = 0; i < columns; ++i) {
    const double away = product[row * columns + i] - sum / columns;
    squares += away * away;
  }
  moments[2 * row] = (float)(sum / columns);
  moments[2 * row + 1] = (float)(1 / sqrt(squares / columns + eps));
}

extern "C" __global__ void applied(const float* product, const float* moments, const float* weight, const float* shift,
                                   float* out, int columns, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / columns;
  if (at >= count) return;
  const float made = (product[at] - moments[2 * row]) * moments[2 * row + 1] * weight[at % columns] + shift[at % columns];
  out[at] = made < 0 ? 0 : made;
}
