// Between float accumulators and packed pairs of 16-bit elements. Element is __half or __nv_bfloat16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cudal2 {

// Rounds one float to nearest even.
template <typename Element>
__device__ __forceinline__ Element round_to(float value);

template <>
__device__ __forceinline__ __half round_to<__half>(float value) {
  return __float2half_rn(value);
}

template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Rounds two floats to nearest even in one instruction; `low` is the lower half, at the lower address.
template <typename Element>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<__half>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
__device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The two halves of a packed pair as floats; exact.
__device__ __forceinline__ float2 unpack_halves(unsigned pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace cudal2
