// A CTA makes 32 x 32 outputs, a thread 4 x 4 of them in registers; pieces of 8 along the depth in shared memory.
extern "C" __global__ void linear(const float* x, const float* weight, const float* bias, float* out, int rows, int columns,
                                  int depth) {
  __shared__ float a[8][33], b[8][33];
  const int row0 = 32 * blockIdx.y, column0 = 32 * blockIdx.x, y = threadIdx.x / 8, z = threadIdx.x % 8;
  float sums[4][4] = {};
  for (int from = 0; from < depth; from += 8) {
    for (int at = threadIdx.x; at < 8 * 32; at += 64) {
      const int k = from + at % 8, line = at / 8;
      a[at % 8][line] = k < depth && row0 + line < rows ? x[(row0 + line) * depth + k] : 0;
      b[at % 8][line] = k < depth && column0 + line < columns ? weight[(column0 + line) * depth + k] : 0;
    }
    __syncthreads();
    for (int k = 0; k < 8; ++k) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[k][y + 8 * i], b[k][z + 8 * j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int row = row0 + y + 8 * i, column = column0 + z + 8 * j;
      if (row < rows && column < columns) {
        const float made = sums[i][j] + bias[column];
        out[row * columns + column] = made < 0 ? 0 : made;
      }
    }
  }
}
