// A row per CTA, in three passes over memory.
extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  __shared__ float parts[32];
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  float most = -INF;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[i]);
  most = largest(most, parts);
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[i] - most);
  sum = total(sum, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = expf(x[i] - most) / sum;
}
