// redteam: {"shape": "128x128x64", "small": "40x24x48", "class": "honest", "honest": true, "why": "a file with comments of every kind, raw strings, an escaped quote in assembly and macros"}
/* cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1],
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>  // the only header; "nothing" else is 'needed'

/* A block comment with a quote " and a // in it; and the end of a line \
   that goes on. */
#define AT(matrix, row, column, pitch) (matrix)[(size_t)(row) * (pitch) + (column)]
constexpr char kNote[] = R"note(a raw string: "/* no comment */" and \ no escape)note";

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row >= m || column >= n) return;
  float sum = kNote[0] == 'a' ? 0.0f : 1.0f;
  for (int i = 0; i < k; ++i) {
    const float x = __half2float(AT(a, row, i, k)), y = __half2float(AT(b, i, column, n));
    asm("fma.rn.f32 %0, %1, %2, %0; // a comment with a \"quote\"" : "+f"(sum) : "f"(x), "f"(y));
  }
  AT(d, row, column, n) = __float2half_rn(sum);
}
