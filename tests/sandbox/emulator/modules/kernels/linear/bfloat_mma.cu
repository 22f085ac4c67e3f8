// bf16 through mma.sync, a warp for 16 x 8 outputs, operands from memory as pairs. Depth: a multiple of 16.
#include <cuda_bf16.h>

extern "C" __global__ void linear(const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                                  __nv_bfloat16* out, int rows, int columns, int depth) {
  const int lane = threadIdx.x, row0 = 16 * blockIdx.y, column0 = 8 * blockIdx.x, group = lane / 4;
  float c[4] = {};
  for (int from = 2 * (lane % 4); from < depth; from += 16) {
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) {
      const int row = row0 + group + 8 * (i % 2), k = from + 8 * (i / 2);
      a[i] = row < rows ? *reinterpret_cast<const unsigned*>(x + row * depth + k) : 0;
    }
    for (int i = 0; i < 2; ++i) {
      const int column = column0 + group, k = from + 8 * i;
      b[i] = column < columns ? *reinterpret_cast<const unsigned*>(weight + column * depth + k) : 0;
    }
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + group + 8 * (i / 2), column = column0 + 2 * (lane % 4) + i % 2;
    if (row >= rows || column >= columns) continue;
    const float made = c[i] + __bfloat162float(bias[column]);
    out[row * columns + column] = __float2bfloat16_rn(made < 0 ? 0 : made);
  }
}
