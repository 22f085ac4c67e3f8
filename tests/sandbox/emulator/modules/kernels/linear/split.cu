// The depth in four pieces, whose sums a second launch adds in order. Shape: partial (4, rows * columns).
extern "C" __global__ void pieces(const float* x, const float* weight, float* partial, int rows, int columns, int depth) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, each = (depth + 3) / 4;
  if (at >= rows * columns) return;
  float sum = 0;
  for (int k = blockIdx.y * each; k < min((blockIdx.y + 1) * each, depth); ++k) {
    sum += x[at / columns * depth + k] * weight[at % columns * depth + k];
  }
  partial[blockIdx.y * rows * columns + at] = sum;
}

extern "C" __global__ void added(const float* partial, const float* bias, float* out, int columns, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float sum = bias[at % columns];
  for (int i = 0; i < 4; ++i) sum += partial[i * count + at];
  out[at] = sum < 0 ? 0 : sum;
}
