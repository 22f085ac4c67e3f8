// The depth in pieces of 16, whose sums are added to the output in any order; ReLU in a last launch.
extern "C" __global__ void biased(const float* bias, float* sums, int columns, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) sums[at] = bias[at % columns];
}

extern "C" __global__ void added(const float* x, const float* weight, float* sums, int columns, int depth, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float sum = 0;
  for (int k = 16 * blockIdx.y; k < min(16 * blockIdx.y + 16, depth); ++k) {
    sum = fmaf(x[at / columns * depth + k], weight[at % columns * depth + k], sum);
  }
  atomicAdd(sums + at, sum);
}

extern "C" __global__ void positive(const float* sums, float* out, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) out[at] = sums[at] < 0 ? 0 : sums[at];
}
