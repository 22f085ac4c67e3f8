// Trusted kernels that run around a candidate with programmatic launch.
//
// The producer lets its dependents start at once, waits, and only then writes the operands; last it checks whether D
// is unchanged. This detects a candidate that reads the operands, or writes D, before griddepcontrol.wait.
// Few CTAs and no shared memory, so that the candidate's CTAs fit beside them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

extern "C" __global__ void late_producer(const u16* a_late, u16* a, u64 a_count, const u16* b_late, u16* b, u64 b_count,
                                         const u16* d, u64 d_count, const u16* before, u64* early_writes, u64 delay_ns) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u64 stride = gridDim.x * (u64)blockDim.x;
  for (const u64 start = nanoseconds(); nanoseconds() - start < delay_ns;) {
  }
  for (u64 i = first; i < a_count; i += stride) a[i] = a_late[i];
  for (u64 i = first; i < b_count; i += stride) b[i] = b_late[i];
  u64 changed = 0;
  const volatile u16* current = d;  // another grid may be writing it: never from a register or L1
  for (u64 i = first; i < d_count; i += stride) changed += current[i] != before[i];
  if (changed) atomicAdd(early_writes, changed);
}

extern "C" __global__ void early_consumer(const u16* d, u16* seen, u64 count) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) seen[i] = d[i];
}

// The same around a module, whose buffers are many. `copies` (late, buffer, bytes) and `watched` (output, before, bytes): tables
// of addresses and sizes.
__device__ __forceinline__ void copied(const u8* from, u8* to, u64 bytes, u64 first, u64 stride) {
  for (u64 i = first; i < bytes / 4; i += stride) ((u32*)to)[i] = ((const u32*)from)[i];
  for (u64 i = bytes / 4 * 4 + first; i < bytes; i += stride) to[i] = from[i];
}

extern "C" __global__ void late_values(const u64* copies, u32 copy_count, const u64* watched, u32 watched_count, u64* early_writes,
                                       u64 delay_ns) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u64 stride = gridDim.x * (u64)blockDim.x;
  for (const u64 start = nanoseconds(); nanoseconds() - start < delay_ns;) {
  }
  for (u32 i = 0; i < copy_count; ++i)
    copied((const u8*)copies[3 * i], (u8*)copies[3 * i + 1], copies[3 * i + 2], first, stride);
  u64 changed = 0;
  for (u32 i = 0; i < watched_count; ++i) {
    const volatile u8* current = (const volatile u8*)watched[3 * i];  // another grid may be writing it
    const u8* before = (const u8*)watched[3 * i + 1];
    for (u64 byte = first; byte < watched[3 * i + 2]; byte += stride) changed += current[byte] != before[byte];
  }
  if (changed) atomicAdd(early_writes, changed);
}

extern "C" __global__ void early_reader(const u64* copies, u32 count) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  for (u32 i = 0; i < count; ++i)
    copied((const u8*)copies[3 * i], (u8*)copies[3 * i + 1], copies[3 * i + 2], first, gridDim.x * (u64)blockDim.x);
}
