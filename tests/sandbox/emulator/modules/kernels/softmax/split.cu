// Each row in four pieces, a CTA each; a second launch merges their maxima and sums. Shape: tops, sums (rows, 4).
extern "C" __global__ void pieces(const float* x, float* tops, float* sums, int columns) {
  __shared__ float parts[32];
  x += blockIdx.y * columns;
  const int each = (columns + 3) / 4, from = blockIdx.x * each, to = min(from + each, columns);
  float most = -INF, sum = 0;
  for (int i = from + threadIdx.x; i < to; i += blockDim.x) most = fmaxf(most, x[i]);
  most = largest(most, parts);
  for (int i = from + threadIdx.x; i < to; i += blockDim.x) sum += expf(x[i] - most);
  sum = total(sum, parts);
  if (threadIdx.x == 0) tops[blockIdx.y * 4 + blockIdx.x] = most;
  if (threadIdx.x == 0) sums[blockIdx.y * 4 + blockIdx.x] = sum;
}

extern "C" __global__ void merged(const float* x, const float* tops, const float* sums, float* out, int columns) {
  const int row = blockIdx.y, at = blockIdx.x * blockDim.x + threadIdx.x;
  float most = -INF, sum = 0;
  for (int i = 0; i < 4; ++i) most = fmaxf(most, tops[row * 4 + i]);
  for (int i = 0; i < 4; ++i) {
    if (sums[row * 4 + i] != 0) sum += sums[row * 4 + i] * expf(tops[row * 4 + i] - most);
  }
  if (at < columns) out[row * columns + at] = expf(x[row * columns + at] - most) / sum;
}
