// D = activation(gate) * up, element by element, of sums that a library rounded: the kernel behind the product of a gated baseline.
//
// ACTIVATION, a class of activation.cuh, and BF16 are defined before this text. A thread has eight elements (16 bytes) where rows are whole such pieces, else one.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ float decoded(u32 bits) {
  float value;
  if (BF16) return __uint_as_float(bits << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
  return value;
}

__device__ __forceinline__ u32 encoded(float value) {
  u16 bits;
  if (BF16)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ u32 of_one(u32 gate, u32 up) { return encoded(ACTIVATION::of(decoded(gate)) * decoded(up)); }

__device__ __forceinline__ u32 of_two(u32 gate, u32 up) {
  return of_one(gate & 0xFFFFu, up & 0xFFFFu) | of_one(gate >> 16, up >> 16) << 16;
}

// Row r of a factor begins at r * pitch elements, that of D at r * columns.
extern "C" __global__ void gate(const u16* gates, const u16* ups, u16* d, u32 rows, u32 columns, u32 pitch) {
  const u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u32 of_row = columns % 8 ? columns : columns / 8;
  if (i >= (u64)rows * of_row) return;
  const u32 row = (u32)(i / of_row), place = (u32)(i % of_row);
  if (columns % 8) {
    const u64 at = (u64)row * pitch + place;
    d[i] = (u16)of_one(gates[at], ups[at]);
    return;
  }
  const u64 at = (u64)row * pitch + 8 * place;
  const uint4 gate = *(const uint4*)(gates + at), up = *(const uint4*)(ups + at);
  ((uint4*)d)[i] = make_uint4(of_two(gate.x, up.x), of_two(gate.y, up.y), of_two(gate.z, up.z), of_two(gate.w, up.w));
}
