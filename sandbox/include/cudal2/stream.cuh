// Loads of global memory into registers that a lane may leave out.
#pragma once

namespace cudal2 {

// Loads 16 bytes where `inside`; elsewhere gives zeros and reads nothing.
__device__ __forceinline__ void load_or_zero(unsigned (&to)[4], const void* source, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@wanted ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
      : "l"(source), "r"(static_cast<int>(inside))
      : "memory");
}

// As load_or_zero for 1, 2 or 4 words of 32 bits that this SM reads once: past L1, and in L2 with a policy (l2_policy of
// tma.cuh). `source` is aligned to the words together.
template <int kWords>
__device__ __forceinline__ void stream_or_zero(unsigned (&to)[kWords], const void* source, bool inside,
                                               unsigned long long policy) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "a load has 4, 8 or 16 bytes");
  if constexpr (kWords == 4) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %5, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "mov.b32 %2, 0;\n"
        "mov.b32 %3, 0;\n"
        "@wanted ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4], %6;\n"
        "}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(source), "r"(static_cast<int>(inside)), "l"(policy)
        : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %3, 0;\n"
        "mov.b32 %0, 0;\n"
        "mov.b32 %1, 0;\n"
        "@wanted ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v2.b32 {%0, %1}, [%2], %4;\n"
        "}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(source), "r"(static_cast<int>(inside)), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %2, 0;\n"
        "mov.b32 %0, 0;\n"
        "@wanted ld.global.L1::no_allocate.L2::cache_hint.L2::128B.b32 %0, [%1], %3;\n"
        "}"
        : "=&r"(to[0])
        : "l"(source), "r"(static_cast<int>(inside)), "l"(policy)
        : "memory");
  }
}

}  // namespace cudal2
