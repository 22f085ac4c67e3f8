/* cudal2: {"arch": "sm_90a", "requires": ["K%64==0"], "workspace": {"bytes": "256+2*M*K"}, "launches": [
     {"entry": "pack", "grid": ["ceil(M/64)", "K//64", 1], "block": [32, 1, 1], "args": [
       {"tensor_map": {"of": "A", "dims": [64, "M", "K//64"], "strides": ["K", 64], "box": [64, 64, 1]}},
       {"tensor_map": {"of": "workspace", "element": "f16", "offset_bytes": 256, "dims": [64, "M", "K//64"],
                       "box": [64, 64, 1]}}]},
     {"entry": "multiply", "grid": ["ceil(M/64)", "ceil(N/32)", 1], "block": [256, 1, 1], "args": [
       {"tensor_map": {"of": "workspace", "element": "f16", "offset_bytes": 256, "dims": [64, "M", "K//64"],
                       "box": [64, 64, 1]}},
       {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
// D = A B. One launch packs A into the workspace in slabs of 64 columns, the next one loads slabs from there: tensor maps of
// three dimensions over an operand, with strides, and over the workspace, dense.
#include <cuda_fp16.h>

#include <cudal2/mbarrier.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

constexpr int BLOCK_M = 64, BLOCK_N = 32, BLOCK_K = 64;

extern "C" __global__ void __launch_bounds__(32)
    pack(const __grid_constant__ cudal2::TensorMap a, const __grid_constant__ cudal2::TensorMap packed) {
  __shared__ alignas(128) __half tile[BLOCK_M][BLOCK_K];
  __shared__ alignas(8) unsigned long long filled;
  if (threadIdx.x) return;
  const unsigned barrier = cudal2::smem_address(&filled), to = cudal2::smem_address(tile);
  cudal2::mbarrier_init(barrier, 1);
  cudal2::mbarrier_init_fence();
  cudal2::mbarrier_arrive_expect(barrier, sizeof(tile));
  cudal2::tma_load_3d(to, a, barrier, 0, blockIdx.x * BLOCK_M, blockIdx.y);
  cudal2::mbarrier_wait(barrier, 0);
  cudal2::tma_store_3d(packed, to, 0, blockIdx.x * BLOCK_M, blockIdx.y);
  cudal2::tma_store_commit();
  cudal2::tma_store_wait_read<0>();
}

extern "C" __global__ void __launch_bounds__(256)
    multiply(const __grid_constant__ cudal2::TensorMap packed, const __half* b, __half* d, int m, int n, int k) {
  __shared__ alignas(128) __half tile[BLOCK_M][BLOCK_K];
  __shared__ alignas(8) unsigned long long filled;
  const unsigned barrier = cudal2::smem_address(&filled);
  if (threadIdx.x == 0) {
    cudal2::mbarrier_init(barrier, 1);
    cudal2::mbarrier_init_fence();
  }
  __syncthreads();
  const int column = blockIdx.y * BLOCK_N + threadIdx.x % BLOCK_N, first = threadIdx.x / BLOCK_N;
  float sums[BLOCK_M / 8] = {};
  for (int slab = 0; slab < k / BLOCK_K; ++slab) {
    if (threadIdx.x == 0) {
      cudal2::mbarrier_arrive_expect(barrier, sizeof(tile));
      cudal2::tma_load_3d(cudal2::smem_address(tile), packed, barrier, 0, blockIdx.x * BLOCK_M, slab);
    }
    cudal2::mbarrier_wait(barrier, slab % 2);
    for (int i = 0; i < BLOCK_K && column < n; ++i) {
      const float right = __half2float(b[(slab * BLOCK_K + i) * n + column]);
      for (int row = 0; row < BLOCK_M / 8; ++row) sums[row] += __half2float(tile[first + 8 * row][i]) * right;
    }
    __syncthreads();  // the next slab takes the place of this one
  }
  for (int row = 0; row < BLOCK_M / 8; ++row) {
    const int at = blockIdx.x * BLOCK_M + first + 8 * row;
    if (at < m && column < n) d[at * n + column] = __float2half(sums[row]);
  }
}
