// For tasks in tf32: mma.sync m16n8k8, operands rounded to nearest, one warp per 16 x 8 outputs.
__device__ unsigned rounded(float x) {
  unsigned made;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(made) : "f"(x));
  return made;
}

extern "C" __global__ void linear(const float* x, const float* weight, const float* bias, float* out, int rows, int columns,
                                  int depth) {
  const int lane = threadIdx.x, row0 = 16 * blockIdx.y, column0 = 8 * blockIdx.x, group = lane / 4;
  float c[4] = {};
  for (int from = lane % 4; from < (depth + 7) / 8 * 8; from += 8) {
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) {
      const int row = row0 + group + 8 * (i % 2), k = from + 4 * (i / 2);
      a[i] = row < rows && k < depth ? rounded(x[row * depth + k]) : 0;
    }
    for (int i = 0; i < 2; ++i) {
      const int column = column0 + group, k = from + 4 * i;
      b[i] = column < columns && k < depth ? rounded(weight[column * depth + k]) : 0;
    }
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + group + 8 * (i / 2), column = column0 + 2 * (lane % 4) + i % 2;
    if (row >= rows || column >= columns) continue;
    const float made = c[i] + bias[column];
    out[row * columns + column] = made < 0 ? 0 : made;
  }
}
