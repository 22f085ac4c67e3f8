// cudal2: {"arch": "sm_80", "accumulate": "f16", "requires": ["M%32==0", "N%16==0", "K%16==0"], "launches": [
//   {"entry": "wmma_global", "grid": ["N/16", "M/32", 1], "block": [64, 1, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "N"}, {"scalar": "K"}]}]}
// D = A B, B column-major, through WMMA with f16 accumulators: fragments come straight from global memory and go there.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void __launch_bounds__(64)
    wmma_global(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ d, int n, int k) {
  const int row = blockIdx.y * 32 + threadIdx.x / 32 * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
  wmma::fill_fragment(sum, __float2half_rn(0.0f));
  for (int k0 = 0; k0 < k; k0 += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
    wmma::load_matrix_sync(left, a + row * k + k0, k);
    wmma::load_matrix_sync(right, b + column * k + k0, k);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(d + row * n + column, sum, n, wmma::mem_row_major);
}
