// BatchNorm in training, a channel per CTA. Shape: x, out (batch, channels, inner). Running statistics are updated.
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
