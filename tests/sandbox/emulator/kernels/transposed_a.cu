/* cudal2: {"arch": "sm_90a", "requires": ["M%8==0", "N%8==0"], "launches": [
     {"entry": "transposed_a", "grid": ["ceil(N/32)", "ceil(M/64)", 1], "block": [128, 1, 1], "args": [
       {"tensor_map": {"of": "A", "box": [64, 16]}}, {"tensor_map": {"of": "B", "box": [32, 16]}},
       {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
// D = A B, A column-major, B row-major: K runs along the rows of both tiles, which TMA brings as they lie in memory, and
// ldmatrix transposes both. Four warps, 16 x 32 each; any K.
#include <cudal2/convert.cuh>
#include <cudal2/ldmatrix.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

constexpr int BLOCK_M = 64, BLOCK_N = 32, BLOCK_K = 16;
constexpr int kColumns = BLOCK_N / 8;

extern "C" __global__ void __launch_bounds__(128)
    transposed_a(const __grid_constant__ cudal2::TensorMap a, const __grid_constant__ cudal2::TensorMap b, __half* d, int m, int n,
                 int k) {
  __shared__ alignas(128) __half tile_a[BLOCK_K][BLOCK_M];
  __shared__ alignas(128) __half tile_b[BLOCK_K][BLOCK_N];
  __shared__ alignas(8) unsigned long long filled;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const unsigned barrier = cudal2::smem_address(&filled);
  if (threadIdx.x == 0) {
    cudal2::mbarrier_init(barrier, 1);
    cudal2::mbarrier_init_fence();
  }
  __syncthreads();
  float sums[kColumns][4] = {};
  for (int step = 0; step * BLOCK_K < k; ++step) {
    if (threadIdx.x == 0) {
      cudal2::mbarrier_arrive_expect(barrier, sizeof(tile_a) + sizeof(tile_b));
      cudal2::tma_load(cudal2::smem_address(tile_a), a, barrier, m0, step * BLOCK_K);
      cudal2::tma_load(cudal2::smem_address(tile_b), b, barrier, n0, step * BLOCK_K);
    }
    cudal2::mbarrier_wait(barrier, step % 2);
    unsigned rows[4], columns[4];
    const __half* from_a = &tile_a[lane / 16 * 8 + lane % 8][warp * 16 + lane / 8 % 2 * 8];
    cudal2::ldmatrix_x4_trans(cudal2::smem_address(from_a), rows[0], rows[1], rows[2], rows[3]);
#pragma unroll
    for (int pair = 0; pair < kColumns / 2; ++pair) {
      const __half* from_b = &tile_b[lane / 8 % 2 * 8 + lane % 8][pair * 16 + lane / 16 * 8];
      cudal2::ldmatrix_x4_trans(cudal2::smem_address(from_b), columns[0], columns[1], columns[2], columns[3]);
      const unsigned left[2] = {columns[0], columns[1]}, right[2] = {columns[2], columns[3]};
      cudal2::mma_m16n8k16<__half>::run(sums[2 * pair], rows, left);
      cudal2::mma_m16n8k16<__half>::run(sums[2 * pair + 1], rows, right);
    }
    __syncthreads();  // the next tiles take the place of these
  }
  for (int column = 0; column < kColumns; ++column) {
    for (int half = 0; half < 2; ++half) {
      const int row = m0 + warp * 16 + half * 8 + lane / 4, at = n0 + column * 8 + lane % 4 * 2;
      const unsigned both = cudal2::pack<__half>(sums[column][2 * half], sums[column][2 * half + 1]);
      if (row < m && at < n) *reinterpret_cast<unsigned*>(d + row * n + at) = both;
    }
  }
}
