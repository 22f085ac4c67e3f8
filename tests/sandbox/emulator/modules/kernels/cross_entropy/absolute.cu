// One CTA: a row per warp in turn, with the logarithm of the sum back at its full size: log(sum) + max - x[target].
extern "C" __global__ void cross_entropy(const float* x, const long long* target, float* out, int rows, int classes) {
  __shared__ float parts[32];
  const int lane = threadIdx.x % 32;
  float mine = 0;
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    const float* from = x + row * classes;
    float most = -INF, sum = 0;
    for (int i = lane; i < classes; i += 32) most = fmaxf(most, from[i]);
    most = warp_most(most);
    for (int i = lane; i < classes; i += 32) sum += expf(from[i] - most);
    sum = warp_total(sum);
    if (lane == 0) mine += logf(sum) + most - from[target[row]];
  }
  mine = total(mine, parts);
  if (threadIdx.x == 0) *out = mine / rows;
}
