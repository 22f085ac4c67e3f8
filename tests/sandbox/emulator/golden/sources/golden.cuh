// What all golden kernels share: their parameters, addresses, and plain copies between global and shared memory.
#pragma once

struct Numbers {
  int v[8];
};

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

typedef unsigned char byte;

#define GOLDEN(NAME) extern "C" __global__ void NAME(const byte* in, byte* out, const __grid_constant__ Numbers n)
#define GOLDEN_MAP(NAME)     \
  extern "C" __global__ void NAME(const byte* in, byte* out, const __grid_constant__ Numbers n, \
                                  const __grid_constant__ TensorMap map)

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four bytes at a time by all threads of the block.
__device__ __forceinline__ void copy_words(void* to, const void* from, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
    static_cast<unsigned*>(to)[i] = static_cast<const unsigned*>(from)[i];
  }
}

__device__ __forceinline__ void fill_words(void* to, unsigned value, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) static_cast<unsigned*>(to)[i] = value;
}
