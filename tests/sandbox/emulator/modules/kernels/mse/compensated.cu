// One CTA; each thread's sum with what its additions lose (Kahan), then in f64.
extern "C" __global__ void mse_loss(const float* x, const float* target, float* out, int count) {
  __shared__ double parts[32];
  float sum = 0, lost = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float away = x[i] - target[i], term = away * away - lost, next = sum + term;
    lost = next - sum - term;
    sum = next;
  }
  const double all = total((double)sum - lost, parts);
  if (threadIdx.x == 0) *out = (float)(all / count);
}
