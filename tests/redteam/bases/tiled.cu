// D = A B with mma.sync: a CTA of eight warps for a tile of 128 x 128, two stages of cp.async along K.
#include <cuda_fp16.h>

#include <cudal2/cp_async.cuh>
#include <cudal2/ldmatrix.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/shared.cuh>
/*{includes}*/

constexpr int kTile = 128, kStep = 32, kThreads = 256;
constexpr int kPitchA = kStep + 8, kPitchB = kTile + 8;  // halves; the padding keeps ldmatrix free of bank conflicts

/*{copy:}*/
__device__ __forceinline__ void copy16(unsigned target, const half* source) { cudal2::cp_async<16>(target, source); }
/*{:}*/
/*{narrow:}*/
__device__ __forceinline__ half narrow(float sum) { return __float2half_rn(sum); }
/*{:}*/
/*{head}*/

extern "C" __global__ void __launch_bounds__(kThreads)
    gemm(const half* a, const half* b, half* d, int m, int n, int k/*{parameters}*/) {
  __shared__ __align__(16) half stage_a[2][kTile * kPitchA], stage_b[2][kStep * kPitchB];
  const int t = threadIdx.x, lane = t % 32, row_of_warp = t / 128 * 64, column_of_warp = t / 32 % 4 * 32;
  int m0 = blockIdx.y * kTile, n0 = blockIdx.x * kTile, k_begin = 0, k_end = k;
  /*{first}*/
  float sums[4][4][4] = {};
  const auto load = [&](int stage, int k0) {
    for (int i = t; i < kTile * kStep / 8; i += kThreads) {
      const int row = i / (kStep / 8), column = i % (kStep / 8) * 8;
      copy16(cudal2::smem_address(&stage_a[stage][row * kPitchA + column]), a + (size_t)(m0 + row) * k + k0 + column);
    }
    for (int i = t; i < kStep * kTile / 8; i += kThreads) {
      const int row = i / (kTile / 8), column = i % (kTile / 8) * 8;
      copy16(cudal2::smem_address(&stage_b[stage][row * kPitchB + column]), b + (size_t)(k0 + row) * n + n0 + column);
    }
    cudal2::cp_async_commit();
  };
  if (k_begin < k_end) load(0, k_begin);
  for (int k0 = k_begin, stage = 0; k0 < k_end; k0 += kStep, stage ^= 1) {
    cudal2::cp_async_wait<0>();
    __syncthreads();  // the copies of all threads are there, and nobody reads the stage that is filled next
    if (k0 + kStep < k_end) load(stage ^ 1, k0 + kStep);
    /*{step}*/
    for (int inner = 0; inner < kStep; inner += 16) {
      unsigned left[4][4], right[4][2];
      for (int i = 0; i < 4; ++i) {
        const half* row = &stage_a[stage][(row_of_warp + 16 * i + lane % 16) * kPitchA + inner + lane / 16 * 8];
        cudal2::ldmatrix_x4(cudal2::smem_address(row), left[i][0], left[i][1], left[i][2], left[i][3]);
      }
      for (int j = 0; j < 4; j += 2) {
        const half* row = &stage_b[stage][(inner + lane % 16) * kPitchB + column_of_warp + 8 * j + lane / 16 * 8];
        cudal2::ldmatrix_x4_trans(cudal2::smem_address(row), right[j][0], right[j][1], right[j + 1][0], right[j + 1][1]);
      }
      /*{fragments}*/
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) cudal2::mma_m16n8k16<half>::run(sums[i][j], left[i], right[j]);
      }
    }
  }
  /*{summed}*/
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int upper = 0; upper < 2; ++upper) {
        const int row = m0 + row_of_warp + 16 * i + lane / 4 + 8 * upper, column = n0 + column_of_warp + 8 * j + lane % 4 * 2;
        const half2 pair = __halves2half2(narrow(sums[i][j][2 * upper]), narrow(sums[i][j][2 * upper + 1]));
        /*{store:}*/*reinterpret_cast<half2*>(d + (size_t)row * n + column) = pair;/*{:}*/
      }
    }
  }
  /*{last}*/
}
/*{tail}*/
