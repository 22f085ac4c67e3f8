// A row per thread, from its end to its start.
extern "C" __global__ void softmax(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  x += row * columns;
  out += row * columns;
  float most = x[0], sum = 0;
  for (int i = columns - 1; i > 0; --i) most = fmaxf(most, x[i]);
  for (int i = columns - 1; i >= 0; --i) sum += out[i] = expf(x[i] - most);
  for (int i = columns - 1; i >= 0; --i) out[i] /= sum;
}
