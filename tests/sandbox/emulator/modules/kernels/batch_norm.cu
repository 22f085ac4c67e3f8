// BatchNorm in training, a channel per CTA. Shape: x, out (batch, channels, inner). Running statistics are updated.
__device__ float total(float value, float* parts) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) value += parts[warp];
  __syncthreads();
  return value;
}

extern "C" __global__ void batch_norm(const float* x, const float* weight, const float* bias, float* running_mean,
                                      float* running_var, long long* batches, float* out, int batch, int channels, int inner,
                                      float eps, float momentum) {
  __shared__ float parts[32];
  const int channel = blockIdx.x, count = batch * inner;
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += x[(i / inner * channels + channel) * inner + i % inner];
  const float mean = total(sum, parts) / count;
  float squares = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float away = x[(i / inner * channels + channel) * inner + i % inner] - mean;
    squares += away * away;
  }
  const float variance = total(squares, parts) / count, scale = 1.0f / sqrtf(variance + eps);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int at = (i / inner * channels + channel) * inner + i % inner;
    out[at] = (x[at] - mean) * scale * weight[channel] + bias[channel];
  }
  if (threadIdx.x == 0) {
    running_mean[channel] = (1 - momentum) * running_mean[channel] + momentum * mean;
    running_var[channel] = (1 - momentum) * running_var[channel] + momentum * (variance * count / (count - 1));
    if (channel == 0) *batches += 1;
  }
}
