// D = A B without tensor cores: one thread per output. Macros set the faults of tests/sandbox/diagnosis/faulty_kernels.py:
//   TILED 0   operands directly from global memory; 1: 32x32 tiles in shared memory, 1024 threads
//   PAD   0   with TILED, a warp reads the tile of B from one bank; 1: one word of padding per row
#include <cuda_fp16.h>

constexpr int TILE = 32;

#if TILED
extern "C" __global__ void __launch_bounds__(TILE * TILE)
hgemm(const half* __restrict__ a, const half* __restrict__ b, half* __restrict__ d, int m, int n, int k) {
  __shared__ float tile_a[TILE][TILE];
  __shared__ float tile_b[TILE][TILE + PAD];  // indexed by column of B, so that a warp reads down a column of this array
  const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
  float sum = 0;
  for (int first = 0; first < k; first += TILE) {
    tile_a[y][x] = __half2float(a[size_t(row) * k + first + x]);
    tile_b[x][y] = __half2float(b[size_t(first + y) * n + column]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[x][i];
    __syncthreads();
  }
  d[size_t(row) * n + column] = __float2half_rn(sum);
}
#else
extern "C" __global__ void __launch_bounds__(256)
hgemm(const half* __restrict__ a, const half* __restrict__ b, half* __restrict__ d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[size_t(row) * k + i]) * __half2float(b[size_t(i) * n + column]);
  d[size_t(row) * n + column] = __float2half_rn(sum);
}
#endif
