// cudal2: {"arch": "sm_80", "requires": [], "launches": [{"entry": "plain_tiled", "grid": ["ceil(N/32)", "ceil(M/32)", 1],
//   "block": [16, 16, 1], "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
//   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
// D = A B without tensor cores, B row-major: tiles of 32 x 32 by way of shared memory, 2 x 2 outputs a thread, any shape.
#include <cuda_fp16.h>

constexpr int BLOCK = 32, BLOCK_K = 16;
constexpr int kThreads = 256;

// What lies outside the matrix is zero.
__device__ __forceinline__ float element(const __half* matrix, int row, int column, int rows, int columns) {
  return row < rows && column < columns ? __half2float(matrix[row * columns + column]) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    plain_tiled(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ d, int m, int n, int k) {
  __shared__ float tile_a[BLOCK][BLOCK_K + 1];  // the extra column keeps a column's reads in different banks
  __shared__ float tile_b[BLOCK_K][BLOCK];
  const int m0 = blockIdx.y * BLOCK, n0 = blockIdx.x * BLOCK;
  const int thread = threadIdx.y * 16 + threadIdx.x;
  float sums[2][2] = {};
  for (int k0 = 0; k0 < k; k0 += BLOCK_K) {
    for (int i = thread; i < BLOCK * BLOCK_K; i += kThreads) {
      const int row = i / BLOCK_K, column = i % BLOCK_K;
      tile_a[row][column] = element(a, m0 + row, k0 + column, m, k);
    }
    for (int i = thread; i < BLOCK_K * BLOCK; i += kThreads) {
      const int row = i / BLOCK, column = i % BLOCK;
      tile_b[row][column] = element(b, k0 + row, n0 + column, k, n);
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < BLOCK_K; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sums[i][j] += tile_a[threadIdx.y + 16 * i][step] * tile_b[step][threadIdx.x + 16 * j];
      }
    }
    __syncthreads();  // the next tiles take the place of these
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const int row = m0 + threadIdx.y + 16 * i, column = n0 + threadIdx.x + 16 * j;
      if (row < m && column < n) d[row * n + column] = __float2half_rn(sums[i][j]);
    }
  }
}
