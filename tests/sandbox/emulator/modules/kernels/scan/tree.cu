// A row of up to 256 per CTA: up and down a tree in shared memory (Blelloch), then inclusive.
extern "C" __global__ void row_scan(const float* x, float* out, int columns) {
  __shared__ float tree[256];
  const int at = threadIdx.x;
  const float own = at < columns ? x[blockIdx.x * columns + at] : 0;
  tree[at] = own;
  for (int step = 1; step < 256; step *= 2) {
    __syncthreads();
    if ((at + 1) % (2 * step) == 0) tree[at] += tree[at - step];
  }
  __syncthreads();
  if (at == 255) tree[at] = 0;
  for (int step = 128; step; step /= 2) {
    __syncthreads();
    if ((at + 1) % (2 * step) == 0) {
      const float left = tree[at - step];
      tree[at - step] = tree[at];
      tree[at] += left;
    }
  }
  __syncthreads();
  if (at < columns) out[blockIdx.x * columns + at] = tree[at] + own;
}
