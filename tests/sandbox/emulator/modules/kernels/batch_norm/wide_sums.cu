// A channel per warp, sums of elements and squares in f64 in one pass; biased variance for the output, unbiased for the state.
extern "C" __global__ void batch_norm(const float* x, const float* weight, const float* bias, float* running_mean,
                                      float* running_var, long long* batches, float* out, int batch, int channels, int inner,
                                      float eps, float momentum) {
  const int channel = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (channel >= channels) return;
  double sum = 0, squares = 0;
  for (int n = 0; n < batch; ++n) {
    for (int i = lane; i < inner; i += 32) {
      const double value = x[(n * channels + channel) * inner + i];
      sum += value;
      squares += value * value;
    }
  }
  const double count = (double)batch * inner, mean = warp_total(sum) / count;
  const double variance = warp_total(squares) / count - mean * mean;
  const float scale = (float)(weight[channel] / sqrt(variance + eps));
  for (int n = 0; n < batch; ++n) {
    for (int i = lane; i < inner; i += 32) {
      const int at = (n * channels + channel) * inner + i;
      out[at] = (float)(x[at] - mean) * scale + bias[channel];
    }
  }
  if (lane == 0) {
    running_mean[channel] = (1 - momentum) * running_mean[channel] + momentum * (float)mean;
    running_var[channel] = (1 - momentum) * running_var[channel] + momentum * (float)(variance * count / (count - 1));
    if (channel == 0) *batches += 1;
  }
}
