// f16 through wgmma m64n8k16, operands in shared memory without a swizzle: core matrices of 8 rows of 16 bytes.
#include <cuda_fp16.h>

__device__ unsigned long long described(const __half* of) {
  const unsigned long long place = (unsigned)__cvta_generic_to_shared(of) >> 4;
  return place | 128ull >> 4 << 16 | 256ull >> 4 << 32;
}

extern "C" __global__ void linear(const __half* x, const __half* weight, const __half* bias, __half* out, int rows, int columns,
                                  int depth) {
  __shared__ __align__(128) __half a[64 * 16], b[8 * 16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = 64 * blockIdx.y, column0 = 8 * blockIdx.x;
  float d[4] = {};
  for (int from = 0; from < depth; from += 16) {
    for (int at = threadIdx.x; at < 72 * 16; at += 128) {
      const int line = at / 16 % 72, k = at % 16, inner = line / 8 * 128 + k / 8 * 64 + line % 8 * 8 + k % 8;
      if (line < 64) {
        a[inner] = row0 + line < rows && from + k < depth ? x[(row0 + line) * depth + from + k] : __half(0);
      } else {
        const int column = column0 + line - 64;
        b[inner - 1024] = column < columns && from + k < depth ? weight[column * depth + from + k] : __half(0);
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(described(a)), "l"(described(b))
                 : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + 16 * warp + lane / 4 + 8 * (i / 2), column = column0 + 2 * (lane % 4) + i % 2;
    if (row >= rows || column >= columns) continue;
    const float made = d[i] + __half2float(bias[column]);
    out[row * columns + column] = __float2half_rn(made < 0 ? 0 : made);
  }
}
