// A row per CTA in one pass: sums of elements and of their squares in f64, where their difference does not cancel.
extern "C" __global__ void layer_norm(const float* x, const float* weight, const float* bias, float* out, int columns,
                                      float eps) {
  __shared__ double parts[32];
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  double sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    sum += x[i];
    squares += (double)x[i] * x[i];
  }
  const double mean = total(sum, parts) / columns, variance = total(squares, parts) / columns - mean * mean;
  const float scale = (float)(1 / sqrt(variance + eps));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = (float)(x[i] - mean) * scale * weight[i] + bias[i];
}
