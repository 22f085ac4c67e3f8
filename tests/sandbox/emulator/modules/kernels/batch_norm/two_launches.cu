// Statistics of each channel by Welford's updates of a warp's lanes, then one thread for each element.
// Shape: x, out (batch, channels, inner); means, scales (channels,).
extern "C" __global__ void statistics(const float* x, float* means, float* scales, float* running_mean, float* running_var,
                                      long long* batches, int batch, int channels, int inner, float eps, float momentum) {
  const int channel = blockIdx.x, lane = threadIdx.x, all = batch * inner;
  float count = 0, mean = 0, squares = 0;
  for (int i = lane; i < all; i += 32) {
    const float value = x[(i / inner * channels + channel) * inner + i % inner], away = value - mean;
    mean += away / ++count;
    squares = fmaf(away, value - mean, squares);
  }
  for (int step = 1; step < 32; step *= 2) {
    const float others = __shfl_down_sync(0xffffffff, count, step), their = __shfl_down_sync(0xffffffff, mean, step);
    const float more = __shfl_down_sync(0xffffffff, squares, step), together = count + others;
    if (lane % (2 * step) || together == 0) continue;
    squares += more + (their - mean) * (their - mean) * (count * others / together);
    mean += (their - mean) * (others / together);
    count = together;
  }
  if (lane) return;
  means[channel] = mean;
  scales[channel] = rsqrtf(squares / all + eps);
  running_mean[channel] += momentum * (mean - running_mean[channel]);
  running_var[channel] += momentum * (squares / (all - 1) - running_var[channel]);
  if (channel == 0) ++*batches;
}

extern "C" __global__ void applied(const float* x, const float* weight, const float* bias, const float* means,
                                   const float* scales, float* out, int channels, int inner, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, channel = at / inner % channels;
  if (at < count) out[at] = fmaf((x[at] - means[channel]) * scales[channel], weight[channel], bias[channel]);
}
