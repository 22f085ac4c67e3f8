// f16 through nvcuda::wmma: 16 x 16 outputs per warp, sums by way of shared memory.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void linear(const __half* x, const __half* weight, const __half* bias, __half* out, int rows, int columns,
                                  int depth) {
  __shared__ __align__(32) __half a[16][16], b[16][16];
  __shared__ __align__(32) float sums[16][16];
  const int row0 = 16 * blockIdx.y, column0 = 16 * blockIdx.x;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.0f);
  for (int from = 0; from < depth; from += 16) {
    for (int at = threadIdx.x; at < 256; at += 32) {
      const int line = at / 16, k = from + at % 16;
      a[line][at % 16] = row0 + line < rows && k < depth ? x[(row0 + line) * depth + k] : __half(0);
      b[line][at % 16] = column0 + line < columns && k < depth ? weight[(column0 + line) * depth + k] : __half(0);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
    wmma::load_matrix_sync(left, a[0], 16);
    wmma::load_matrix_sync(right, b[0], 16);
    wmma::mma_sync(c, left, right, c);
    __syncwarp();
  }
  wmma::store_matrix_sync(sums[0], c, 16, wmma::mem_row_major);
  __syncwarp();
  for (int at = threadIdx.x; at < 256; at += 32) {
    const int row = row0 + at / 16, column = column0 + at % 16;
    if (row >= rows || column >= columns) continue;
    const float made = sums[at / 16][at % 16] + __half2float(bias[column]);
    out[row * columns + column] = __float2half_rn(made < 0 ? 0 : made);
  }
}
