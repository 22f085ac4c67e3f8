// What follows a product in f16: a row per warp, all sums in f32.
#include <cuda_fp16.h>

extern "C" __global__ void norm_relu(const __half* product, const __half* bias, const __half* weight, const __half* shift,
                                     __half* out, int rows, int columns, float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  product += row * columns;
  out += row * columns;
  float sum = 0, squares = 0;
  for (int i = lane; i < columns; i += 32) sum += __half2float(product[i]) + __half2float(bias[i]);
  const float mean = warp_total(sum) / columns;
  for (int i = lane; i < columns; i += 32) {
    const float away = __half2float(product[i]) + __half2float(bias[i]) - mean;
    squares += away * away;
  }
  const float scale = rsqrtf(warp_total(squares) / columns + eps);
  for (int i = lane; i < columns; i += 32) {
    const float away = __half2float(product[i]) + __half2float(bias[i]) - mean;
    const float made = away * scale * __half2float(weight[i]) + __half2float(shift[i]);
    out[i] = __float2half_rn(made < 0 ? 0 : made);
  }
}
