// f16 through mma.sync: a warp makes 16 x 8 outputs, two share a CTA; operands through shared memory and ldmatrix.
#include <cuda_fp16.h>

extern "C" __global__ void linear(const __half* x, const __half* weight, const __half* bias, __half* out, int rows, int columns,
                                  int depth) {
  __shared__ __align__(16) __half a[16][24], b[16][24];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = 16 * blockIdx.y, column0 = 16 * blockIdx.x;
  float c[4] = {};
  for (int from = 0; from < depth; from += 16) {
    for (int at = threadIdx.x; at < 256; at += 64) {
      const int line = at / 16, k = from + at % 16;
      a[line][at % 16] = row0 + line < rows && k < depth ? x[(row0 + line) * depth + k] : __half(0);
      b[line][at % 16] = column0 + line < columns && k < depth ? weight[(column0 + line) * depth + k] : __half(0);
    }
    __syncthreads();
    unsigned r[4], s[2];
    const unsigned left = (unsigned)__cvta_generic_to_shared(&a[lane % 16][lane / 16 * 8]);
    const unsigned right = (unsigned)__cvta_generic_to_shared(&b[8 * warp + lane % 8][lane / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(left)
                 : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "r"(right) : "memory");
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]));
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + lane / 4 + 8 * (i / 2), column = column0 + 8 * warp + 2 * (lane % 4) + i % 2;
    if (row >= rows || column >= columns) continue;
    const float made = c[i] + __half2float(bias[column]);
    out[row * columns + column] = __float2half_rn(made < 0 ? 0 : made);
  }
}
