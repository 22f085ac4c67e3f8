// D = A B by TMA: a CTA loads boxes of 16 x 16 through tensor maps, one thread for each output multiplies them.
#include <cuda_fp16.h>

#include <cudal2/mbarrier.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>
/*{includes}*/
/*{head}*/

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k,
                                const __grid_constant__ cudal2::TensorMap map_a,
                                const __grid_constant__ cudal2::TensorMap map_b/*{parameters}*/) {
  __shared__ __align__(128) half tile_a[16][16], tile_b[16][16];
  __shared__ __align__(8) unsigned long long bar;
  const unsigned full = cudal2::smem_address(&bar);
  const int t = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 16, row = m0 + t / 16, column = n0 + t % 16;
  const cudal2::TensorMap *of_a = &map_a, *of_b = &map_b;
  if (t == 0) {
    cudal2::mbarrier_init(full, 1);
    cudal2::mbarrier_init_fence();
  }
  /*{first}*/
  __syncthreads();
  float sum = 0;
  for (int k0 = 0, phase = 0; k0 < k; k0 += 16, phase ^= 1) {
    if (t == 0) {
      cudal2::mbarrier_arrive_expect(full, sizeof(tile_a) + sizeof(tile_b));
      cudal2::tma_load(cudal2::smem_address(tile_a), *of_a, full, k0, m0);
      cudal2::tma_load(cudal2::smem_address(tile_b), *of_b, full, n0, k0);
      /*{loaded}*/
    }
    cudal2::mbarrier_wait(full, phase);
    for (int i = 0; i < 16; ++i) sum += __half2float(tile_a[t / 16][i]) * __half2float(tile_b[i][t % 16]);
    __syncthreads();
  }
  /*{summed}*/
  /*{store:}*/
  if (row < m && column < n) d[(size_t)row * n + column] = __float2half_rn(sum);
  /*{:}*/
  /*{last}*/
}
/*{tail}*/
