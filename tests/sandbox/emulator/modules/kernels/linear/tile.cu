// out = x * weight^T in tiles of 16 x 16 through shared memory. Shape: x (rows, depth), weight (columns, depth).
extern "C" __global__ void linear(const float* x, const float* weight, float* out, int rows, int columns, int depth) {
  __shared__ float a[16][17], b[16][17];
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  const int other = blockIdx.x * 16 + threadIdx.y;
  float sum = 0;
  for (int from = 0; from < depth; from += 16) {
    const int k = from + threadIdx.x;
    a[threadIdx.y][threadIdx.x] = row < rows && k < depth ? x[row * depth + k] : 0.0f;
    b[threadIdx.y][threadIdx.x] = other < columns && k < depth ? weight[other * depth + k] : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum = fmaf(a[threadIdx.y][i], b[threadIdx.x][i], sum);
    __syncthreads();
  }
  if (row < rows && column < columns) out[row * columns + column] = sum;
}
