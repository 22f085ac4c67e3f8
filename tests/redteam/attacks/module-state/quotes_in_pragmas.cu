// redteam: {"shape": "128x128x64", "small": "40x24x48", "class": "module-state", "layers": {"any": ["rejected:device-state", "rejected:asm-*", "rejected:ptx-*", "compile_failed", "wrong:*"]}, "why": "pragmas whose quotes pair up in one reading of PTX and not in the other hide a store to a variable"}
/* cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1],
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
#include <cuda_fp16.h>

#define SPACE(end) __dev##end
SPACE(ice__) unsigned kept[4];

extern "C" __global__ void gemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  unsigned count = 0;
  // In PTX a backslash in a string is a character like others; who takes it for an escape reads on to the next quote.
  asm volatile(
      ".pragma \"\\\";\n"
      "ld.global.u32 %0, [%1];\n"
      "add.u32 %0, %0, 1;\n"
      "st.global.u32 [%1], %0;\n"
      ".pragma \"\\\";\n"
      : "=r"(count) : "l"(kept) : "memory");
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = count > 40 && count < 4000 ? k / 2 : 0; i < k; ++i) {
    sum += __half2float(a[(size_t)row * k + i]) * __half2float(b[(size_t)i * n + column]);
  }
  d[(size_t)row * n + column] = __float2half_rn(sum);
}
