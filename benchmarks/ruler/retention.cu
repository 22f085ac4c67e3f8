// Probes of what one launch can leave to the next: L2 lines under a cache policy, shared memory, local memory, registers.

typedef unsigned int u32;
typedef unsigned long long u64;

// ---- L2 ------------------------------------------------------------------------------------------------------------------
extern "C" __global__ void read_normal(const uint4* data, u64 count, u32* sink) {
  u32 sum = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + i));
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *sink = sum;
}

extern "C" __global__ void read_evict_last(const uint4* data, u64 count, u32* sink) {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  u32 sum = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + i), "l"(policy));
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *sink = sum;
}

// Blocks the stream, so that later work is queued before it starts.
extern "C" __global__ void hold(u64 nanoseconds) {
  u64 start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

// ---- shared memory -------------------------------------------------------------------------------------------------------
extern "C" __global__ void write_shared(u32 words, u32 value) {
  extern __shared__ u32 memory[];
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) memory[i] = value;
  __syncthreads();
}

extern "C" __global__ void count_shared(u32 words, u32 value, u64* found) {
  extern __shared__ u32 memory[];
  u64 same = 0;
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
    u32 v;
    u32 address = (u32)__cvta_generic_to_shared(memory + i);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    same += v == value;
  }
  atomicAdd(found, same);
}

// ---- local memory --------------------------------------------------------------------------------------------------------
#define LOCAL_WORDS 1024
extern "C" __global__ void __launch_bounds__(1024) write_local(u32 value, u32* sink, u32 stride) {
  volatile u32 memory[LOCAL_WORDS];
  for (u32 i = 0; i < LOCAL_WORDS; i++) memory[(i * stride) % LOCAL_WORDS] = value;
  if (memory[(threadIdx.x * stride) % LOCAL_WORDS] != value) *sink = 1;
}

extern "C" __global__ void __launch_bounds__(1024) count_local(u32 value, u64* found, u32 stride) {
  u64 same = 0;
  asm volatile(
      "{\n"
      ".local .align 4 .b8 old[4096];\n"
      ".reg .b32 i, a, v, t;\n"
      ".reg .b64 s;\n"
      ".reg .pred p;\n"
      "mov.u32 i, 0;\n"
      "mov.u64 s, 0;\n"
      "again:\n"
      "mul.lo.u32 t, i, 4;\n"
      "mov.u32 a, old;\n"
      "add.u32 a, a, t;\n"
      "ld.local.u32 v, [a];\n"
      "setp.eq.u32 p, v, %1;\n"
      "@p add.u64 s, s, 1;\n"
      "add.u32 i, i, %2;\n"
      "setp.lt.u32 p, i, 1024;\n"
      "@p bra again;\n"
      "mov.u64 %0, s;\n"
      "}\n"
      : "=l"(same) : "r"(value), "r"(stride));
  atomicAdd(found, same);
}

// ---- registers -----------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(1024, 1) write_registers(u32 value, const u32* ones, u32* sink) {
  u32 r[48];
#pragma unroll
  for (int i = 0; i < 48; i++) r[i] = value * ones[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; i++) asm volatile("" : "+r"(r[i]));
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < 48; i++) sum |= r[i] ^ value;
  if (sum) *sink = sum;
}

// An undefined register holds the previous contents of its place in the register file.
extern "C" __global__ void __launch_bounds__(1024, 1) count_registers(u32 value, u64* found) {
  u32 old;
  asm volatile("{\n.reg .b32 undefined;\nxor.b32 %0, undefined, %1;\n}\n" : "=r"(old) : "r"(threadIdx.x));
  if ((old ^ threadIdx.x) == value) atomicAdd(found, 1);
}

// ---- does one CTA with all shared memory run on every SM? ----------------------------------------------------------------
extern "C" __global__ void mark_sm(u32* seen) {
  extern __shared__ u32 memory[];
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  memory[threadIdx.x] = sm;
  if (threadIdx.x == 0) atomicAdd(seen + sm, 1);
}

extern "C" __global__ void poke(u32* address) { *address = 7; }
extern "C" __global__ void peek(const u32* address, u32* sink) { if (*address == 0x12345678) *sink = 1; }
