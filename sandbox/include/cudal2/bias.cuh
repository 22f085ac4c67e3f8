// A bias of n elements, one for each column of D, as floats. The loads stay behind the wait for the preceding kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudal2 {

__device__ __forceinline__ float2 floats_of_pair(unsigned pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ float2 floats_of_pair(unsigned pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// The bias of one column, 0 outside of D.
template <typename Element>
__device__ __forceinline__ float bias_of(const Element* bias, int column, int n) {
  unsigned short bits = 0;
  if (column < n) asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(bias + column) : "memory");
  return floats_of_pair(bits, Element()).x;
}

// The bias of an even column and of the next.
template <typename Element>
__device__ __forceinline__ float2 bias_of_pair(const Element* bias, int column, int n) {
  if (column + 1 >= n) return make_float2(bias_of(bias, column, n), 0.0f);
  unsigned pair;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(pair) : "l"(bias + column) : "memory");
  return floats_of_pair(pair, Element());
}

}  // namespace cudal2
