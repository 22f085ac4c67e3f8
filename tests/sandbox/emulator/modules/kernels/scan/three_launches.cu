// Pieces of 64: their sums, the sums before each, then each piece from there. Shape: sums (rows, pieces).
extern "C" __global__ void piece_sums(const float* x, float* sums, int columns, int pieces) {
  const int at = blockIdx.x * 64 + threadIdx.x;
  __shared__ float parts[32];
  const float sum = total(at < columns ? x[blockIdx.y * columns + at] : 0.0f, parts);
  if (threadIdx.x == 0) sums[blockIdx.y * pieces + blockIdx.x] = sum;
}

extern "C" __global__ void sums_before(float* sums, int rows, int pieces) {
  const int row = threadIdx.x;
  float before = 0;
  for (int i = 0; row < rows && i < pieces; ++i) {
    const float sum = sums[row * pieces + i];
    sums[row * pieces + i] = before;
    before += sum;
  }
}

extern "C" __global__ void pieces_from(const float* x, const float* sums, float* out, int columns, int pieces) {
  const int at = blockIdx.x * 64 + threadIdx.x, lane = threadIdx.x % 32;
  __shared__ float first;
  float value = at < columns ? x[blockIdx.y * columns + at] : 0;
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(0xffffffff, value, step);
    if (lane >= step) value += before;
  }
  if (threadIdx.x == 31) first = value;
  __syncthreads();
  if (threadIdx.x >= 32) value += first;
  if (at < columns) out[blockIdx.y * columns + at] = sums[blockIdx.y * pieces + blockIdx.x] + value;
}
