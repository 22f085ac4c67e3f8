// A row per CTA; maximum and sum by shuffles in a warp, then over warps.
__device__ float reduce(float value, bool largest, float* parts) {
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, value, step);
    value = largest ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = largest ? fmaxf(value, parts[warp]) : value + parts[warp];
  __syncthreads();
  return value;
}

extern "C" __global__ void row_softmax(const float* x, float* out, int columns) {
  __shared__ float parts[32];
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  float most = -__int_as_float(0x7f800000);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[i]);
  most = reduce(most, true, parts);
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[i] - most);
  sum = reduce(sum, false, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = expf(x[i] - most) / sum;
}
