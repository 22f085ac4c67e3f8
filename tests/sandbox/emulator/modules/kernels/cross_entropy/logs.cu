// Two launches: what is subtracted from each row, then the mean of what is left at the targets. Shape: logs (rows,).
extern "C" __global__ void sums(const float* x, float* logs, int classes) {
  __shared__ float parts[32];
  x += blockIdx.x * classes;
  float most = -INF, sum = 0;
  for (int i = threadIdx.x; i < classes; i += blockDim.x) most = fmaxf(most, x[i]);
  most = largest(most, parts);
  for (int i = threadIdx.x; i < classes; i += blockDim.x) sum += __expf(x[i] - most);
  sum = total(sum, parts);
  if (threadIdx.x == 0) logs[blockIdx.x] = most + __logf(sum);
}

extern "C" __global__ void mean(const float* x, const float* logs, const long long* target, float* out, int rows, int classes) {
  float sum = 0;
  for (int row = threadIdx.x; row < rows; row += 32) sum -= x[row * classes + target[row]] - logs[row];
  sum = warp_total(sum);
  if (threadIdx.x == 0) *out = sum / rows;
}
