// cudal2: {"arch": "sm_80", "launches": [{"entry": "wmma_shared", "grid": ["ceil(N/32)", "ceil(M/32)", 1],
//   "block": [128, 1, 1], "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
//   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
// D = A B, B row-major, through WMMA with f32 accumulators: four warps, 16 x 16 each, operands and sums by way of shared
// memory, any shape.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int BLOCK = 32, BLOCK_K = 32;
constexpr int kPitch = BLOCK_K + 8;      // halves; 16 bytes more than a row, so that rows start at different banks
constexpr int kSumPitch = BLOCK + 4;     // floats
constexpr int kThreads = 128;

__device__ __forceinline__ void load(__half (&tile)[BLOCK][kPitch], const __half* matrix, int row0, int column0, int rows,
                                     int columns) {
  for (int i = threadIdx.x; i < BLOCK * BLOCK_K; i += kThreads) {
    const int row = row0 + i / BLOCK_K, column = column0 + i % BLOCK_K;
    const bool inside = row < rows && column < columns;
    tile[i / BLOCK_K][i % BLOCK_K] = inside ? matrix[row * columns + column] : __float2half_rn(0.0f);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    wmma_shared(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ d, int m, int n, int k) {
  __shared__ __align__(32) __half tile_a[BLOCK][kPitch];
  __shared__ __align__(32) __half tile_b[BLOCK_K][kPitch];
  __shared__ __align__(32) float sums[BLOCK][kSumPitch];
  const int warp = threadIdx.x / 32;
  const int row = warp / 2 * 16, column = warp % 2 * 16;
  const int m0 = blockIdx.y * BLOCK, n0 = blockIdx.x * BLOCK;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k0 = 0; k0 < k; k0 += BLOCK_K) {
    load(tile_a, a, m0, k0, m, k);
    load(tile_b, b, k0, n0, k, n);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < BLOCK_K; step += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
      wmma::load_matrix_sync(left, &tile_a[row][step], kPitch);
      wmma::load_matrix_sync(right, &tile_b[step][column], kPitch);
      wmma::mma_sync(sum, left, right, sum);
    }
    __syncthreads();  // the next tiles take the place of these
  }
  wmma::store_matrix_sync(&sums[row][column], sum, kSumPitch, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < BLOCK * BLOCK; i += kThreads) {
    const int r = i / BLOCK, c = i % BLOCK;
    if (m0 + r < m && n0 + c < n) d[(m0 + r) * n + n0 + c] = __float2half_rn(sums[r][c]);
  }
}
