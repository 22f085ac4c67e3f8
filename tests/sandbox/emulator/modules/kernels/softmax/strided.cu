// Over the first dimension: a thread for each column, and eight of them share it. Shape: (rows, columns).
extern "C" __global__ void softmax(const float* x, float* out, int rows, int columns) {
  __shared__ float parts[8][33];
  const int column = blockIdx.x * 32 + threadIdx.x, y = threadIdx.y;
  const bool inside = column < columns;
  float most = -INF, sum = 0;
  for (int i = y; inside && i < rows; i += 8) most = fmaxf(most, x[i * columns + column]);
  parts[y][threadIdx.x] = most;
  __syncthreads();
  for (int i = 0; i < 8; ++i) most = fmaxf(most, parts[i][threadIdx.x]);
  __syncthreads();
  for (int i = y; inside && i < rows; i += 8) sum += expf(x[i * columns + column] - most);
  parts[y][threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 8; ++i) sum += parts[i][threadIdx.x];
  for (int i = y; inside && i < rows; i += 8) out[i * columns + column] = expf(x[i * columns + column] - most) / sum;
}
