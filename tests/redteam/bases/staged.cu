// D = A B by cp.async: stages of 32 of K for a tile of 16 x 16, one thread for each output.
#include <cuda_fp16.h>

#include <cudal2/cp_async.cuh>
#include <cudal2/shared.cuh>
/*{includes}*/

constexpr int kStages = 3, kStep = 32;
/*{head}*/

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k/*{parameters}*/) {
  __shared__ __align__(128) half stage_a[kStages][16 * kStep], stage_b[kStages][kStep * 16];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, m0 = blockIdx.y * 16, n0 = blockIdx.x * 16, steps = k / kStep;
  // Vector `v` of a step: 0 to 63 of A, 64 to 127 of B, 16 bytes each.
  const auto copy = [&](int step, int v) {
    const int stage = step % kStages, u = v - 64;
    const half* const from_a = a + (size_t)(m0 + v / 4) * k + step * kStep + v % 4 * 8;
    const half* const from_b = b + (size_t)(step * kStep + u / 2) * n + n0 + u % 2 * 8;
    half* const target = v < 64 ? stage_a[stage] + v * 8 : stage_b[stage] + u * 8;
    cudal2::cp_async<16>(cudal2::smem_address(target), v < 64 ? from_a : from_b);
  };
  /*{first}*/
  const auto fill = [&](int step) {
    /*{fill:}*/
    if (step < steps && t < 128) copy(step, t);
    cudal2::cp_async_commit();
    /*{:}*/
  };
  for (int step = 0; step < kStages - 1; ++step) fill(step);
  float sum = 0;
  for (int step = 0; step < steps; ++step) {
    /*{ready:}*/
    cudal2::cp_async_wait<kStages - 2>();
    __syncthreads();
    /*{:}*/
    /*{ahead:}*/
    fill(step + kStages - 1);
    /*{:}*/
    const half *const left = stage_a[step % kStages] + t / 16 * kStep, *const right = stage_b[step % kStages] + t % 16;
    /*{product:}*/
    for (int i = 0; i < kStep; ++i) sum += __half2float(left[i]) * __half2float(right[i * 16]);
    /*{:}*/
    /*{used}*/
  }
  /*{summed}*/
  d[(size_t)(m0 + t / 16) * n + n0 + t % 16] = __float2half_rn(sum);
}
/*{tail}*/
