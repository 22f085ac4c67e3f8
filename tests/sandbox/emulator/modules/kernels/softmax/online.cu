// A row per warp, read twice: each lane keeps a maximum and the sum relative to it; shuffles merge them.
__device__ float scaled(float from, float to) { return from == to ? 1.0f : expf(from - to); }

__device__ void merge(float& most, float& sum, float other, float others) {
  const float larger = fmaxf(most, other);
  sum = sum * scaled(most, larger) + others * scaled(other, larger);
  most = larger;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += row * columns;
  out += row * columns;
  float most = -INF, sum = 0;
  for (int i = lane; i < columns; i += 32) merge(most, sum, x[i], 1);
  for (int step = 16; step; step /= 2) {
    merge(most, sum, __shfl_xor_sync(0xffffffff, most, step), __shfl_xor_sync(0xffffffff, sum, step));
  }
  for (int i = lane; i < columns; i += 32) out[i] = expf(x[i] - most) / sum;
}
