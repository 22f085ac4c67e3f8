// Trusted kernels of the timer: they fill, scrub and judge what timed launches read and write.
//
// Every number follows from a 64-bit key of the system's entropy and a position. The same key makes the same data again,
// and nothing that a kernel may know predicts them. None of these kernels runs inside a timed interval.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FIRST (blockIdx.x * (u64)blockDim.x + threadIdx.x)
#define STRIDE (gridDim.x * (u64)blockDim.x)

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
__device__ __forceinline__ u64 mixed(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ float decoded(u16 bits, int bf16) {
  float value;
  if (bf16) return __uint_as_float((u32)bits << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ u16 encoded(float value, int bf16) {
  u16 bits;
  if (bf16)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Numbers 2 * pair and 2 * pair + 1 of a matrix: normal, by Box and Muller (1958).
__device__ __forceinline__ float2 normal_pair(u64 matrix_key, u64 pair) {
  const u64 bits = mixed(matrix_key + pair);
  const float radius = sqrtf(-2.0f * logf((float)((u32)(bits >> 40) + 1u) * 0x1p-24f));
  float sine, cosine;
  sincospif((float)(u32)(bits & 0xFFFFFFu) * 0x1p-23f, &sine, &cosine);
  return make_float2(radius * cosine, radius * sine);
}

// ---- operands ------------------------------------------------------------------------------------------------------------
// Matrices `first` to `first + count` of a pool; `starts` counts elements. `transposed`: element (r, c) of memory is number
// c * rows + r of its matrix, so that both layouts of an operand hold the same numbers: normal ones times `scale`, or, with
// `ones` above 0, zeros and ones, a one with that probability.
struct Pool {
  u64 first, count;
  u32 rows, columns;
  u64 key;
  int transposed, bf16;
  float scale, ones;
};

__device__ __forceinline__ float2 number_pair(const Pool& pool, u64 matrix_key, u64 pair) {
  if (pool.ones > 0.0f) {
    const u64 bits = mixed(matrix_key + pair);
    return make_float2((float)(u32)bits * 0x1p-32f < pool.ones, (float)(u32)(bits >> 32) * 0x1p-32f < pool.ones);
  }
  const float2 normal = normal_pair(matrix_key, pair);
  return make_float2(normal.x * pool.scale, normal.y * pool.scale);
}

// Calls visit(place, bits) for every element of one matrix that belongs to this thread.
template <class Visit>
__device__ __forceinline__ void each_element(const Pool& pool, u64 matrix_key, Visit visit) {
  const u32 size = pool.rows * pool.columns;
  if (pool.transposed) {
    for (u32 i = FIRST; i < size; i += (u32)STRIDE) {
      const u32 number = i % pool.columns * pool.rows + i / pool.columns;
      const float2 pair = number_pair(pool, matrix_key, number >> 1);
      visit(i, encoded(number & 1 ? pair.y : pair.x, pool.bf16));
    }
    return;
  }
  for (u32 i = 2 * FIRST; i < size; i += 2 * (u32)STRIDE) {
    const float2 pair = number_pair(pool, matrix_key, i >> 1);
    visit(i, encoded(pair.x, pool.bf16));
    if (i + 1 < size) visit(i + 1, encoded(pair.y, pool.bf16));
  }
}

extern "C" __global__ void fill_operands(u16* data, const u64* starts, const Pool pool) {
  for (u64 matrix = blockIdx.y; matrix < pool.count; matrix += gridDim.y) {
    u16* own = data + starts[matrix];
    each_element(pool, mixed(pool.key ^ (pool.first + matrix)), [=](u32 place, u16 bits) { own[place] = bits; });
  }
}

// A predecessor that lets its dependents start, waits, and only then writes one A, one B and a third operand, of which there may
// be none; last it counts where D changed.
extern "C" __global__ void late_operands(u16* a, const Pool of_a, u16* b, const Pool of_b, u16* third, const Pool of_third,
                                         const u16* d, const u16* before, u64 d_count, u64* early, u64 delay_ns) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  for (const u64 start = nanoseconds(); nanoseconds() - start < delay_ns;) {
  }
  each_element(of_a, mixed(of_a.key ^ of_a.first), [=](u32 place, u16 bits) { a[place] = bits; });
  each_element(of_b, mixed(of_b.key ^ of_b.first), [=](u32 place, u16 bits) { b[place] = bits; });
  if (of_third.count) each_element(of_third, mixed(of_third.key ^ of_third.first), [=](u32 place, u16 bits) { third[place] = bits; });
  u64 changed = 0;
  const volatile u16* current = d;  // another grid may be writing it: never from a register or L1
  for (u64 i = FIRST; i < d_count; i += STRIDE) changed += current[i] != before[i];
  if (changed) atomicAdd(early, changed);
}

// A sum over whole words; a change of any word goes undetected with probability 2^-64.
extern "C" __global__ void checksum(const u64* data, u64 words, u64 key, u64* sum) {
  u64 own = 0;
#pragma unroll 4
  for (u64 i = FIRST; i < words; i += STRIDE) own += mixed(data[i] + key * (2 * i + 1));
  atomicAdd(sum, own);
}

// ---- the ring of outputs and workspaces ----------------------------------------------------------------------------------
// Unpredictable pairs of 64-bit words, the same again for the same key.
__device__ __forceinline__ ulonglong2 filling(u64 key, u64 odd, u64 i) {
  return make_ulonglong2(mixed(key + 2 * i * odd), mixed(key + (2 * i + 1) * odd));
}

extern "C" __global__ void fill_ring(ulonglong2* data, u64 pairs, u64 key) {
  const u64 odd = mixed(key) | 1;
  for (u64 i = FIRST; i < pairs; i += STRIDE) data[i] = filling(key, odd, i);
}

// Pairs of words that no longer hold their filling, in blocks of 256 bytes that no launch owns.
extern "C" __global__ void count_strays(const ulonglong2* data, u64 pairs, u64 key, const u8* owned, u64* strays) {
  const u64 odd = mixed(key) | 1;
  for (u64 i = FIRST; i < pairs; i += STRIDE) {
    if (owned[i / 16]) continue;
    const ulonglong2 wanted = filling(key, odd, i), held = data[i];
    if (held.x != wanted.x || held.y != wanted.y) atomicAdd(strays, 1);
  }
}

// The first `words` words of every slot. `starts` counts words.
extern "C" __global__ void zero_slots(u64* data, const u64* starts, u64 count, u64 words) {
  for (u64 slot = blockIdx.y; slot < count; slot += gridDim.y)
    for (u64 i = FIRST; i < words; i += STRIDE) data[starts[slot] + i] = 0;
}

extern "C" __global__ void count_nonzero(const u8* data, const u64* starts, u64 count, u64 bytes, u64* found) {
  u64 own = 0;
  for (u64 slot = blockIdx.y; slot < count; slot += gridDim.y)
    for (u64 i = FIRST; i < bytes; i += STRIDE) own += data[8 * starts[slot] + i] != 0;
  if (own) atomicAdd(found, own);
}

// ---- what stays on an SM -------------------------------------------------------------------------------------------------
// One CTA per SM with all of its shared memory, and its registers with 64 for each of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024, 1) scrub_chip(u32 words, u64 key, u64* sink) {
  extern __shared__ u32 shared[];
  u32 held[48];
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) shared[i] = (u32)mixed(key ^ FIRST ^ ((u64)i << 32));
#pragma unroll
  for (int i = 0; i < 48; i++) held[i] = (u32)mixed(key + FIRST * 64 + i);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; i++) asm volatile("" : "+r"(held[i]));
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < 48; i++) sum ^= held[i];
  if (sum == 0x9E3779B9u && key == 1) *sink = sum;
}

// Two CTAs per SM occupy all of its threads; every thread writes all of its local memory.
template <u32 kWords>
__device__ __forceinline__ void scrub_local(u64 key, u64* sink, u32 step) {
  volatile u32 held[kWords];
  for (u32 i = 0; i < kWords; i += step) held[i] = (u32)(key >> 7) ^ i * 0x9E3779B9u ^ threadIdx.x;
  if (held[(u32)key % kWords] == 0x9E3779B9u && key == 1) *sink = key;
}
extern "C" __global__ void __launch_bounds__(1024) scrub_local_1024(u64 key, u64* sink, u32 step) {
  scrub_local<256>(key, sink, step);
}
extern "C" __global__ void __launch_bounds__(1024) scrub_local_4096(u64 key, u64* sink, u32 step) {
  scrub_local<1024>(key, sink, step);
}
extern "C" __global__ void __launch_bounds__(1024) scrub_local_16384(u64 key, u64* sink, u32 step) {
  scrub_local<4096>(key, sink, step);
}

// ---- L2 ------------------------------------------------------------------------------------------------------------------
// Lines that a cache policy keeps become ordinary ones. `lines` of 128 bytes.
extern "C" __global__ void demote(const u8* data, u64 lines) {
  for (u64 i = FIRST; i < lines; i += STRIDE)
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(data + 128 * i));
}

extern "C" __global__ void sweep(uint4* data, u64 count, u64 key) {
  for (u64 i = FIRST; i < count; i += STRIDE) data[i] = make_uint4((u32)key, (u32)i, (u32)(key >> 32), (u32)(i >> 32));
}

// ---- outputs -------------------------------------------------------------------------------------------------------------
// sums[s][r] = sum over c of matrix[chosen[s]][r][c] * factors[applied[s]][c]; `starts` counts elements. A null list counts s.
// One warp for kRows rows, so that a factor that was loaded serves all of them.
constexpr u32 kRows = 4;

extern "C" __global__ void project(const u16* data, const u64* starts, u32 rows, u32 columns, const u32* chosen,
                                   const float* factors, const u32* applied, float* sums, int bf16) {
  const u32 first = kRows * (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (first >= rows) return;
  const u64 slot = blockIdx.y;
  const u16* matrix = data + starts[chosen ? chosen[slot] : slot];
  const float* factor = factors + (u64)(applied ? applied[slot] : 0) * columns;
  const u16* row[kRows];
#pragma unroll
  for (u32 r = 0; r < kRows; r++) row[r] = matrix + (u64)min(first + r, rows - 1) * columns;
  float sum[kRows] = {};
  if (columns % 8 == 0) {
    for (u32 c = 8 * lane; c < columns; c += 256) {
      uint4 packed[kRows];
#pragma unroll
      for (u32 r = 0; r < kRows; r++) packed[r] = *(const uint4*)(row[r] + c);
      const float4 low = *(const float4*)(factor + c), high = *(const float4*)(factor + c + 4);
      const float by[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (u32 r = 0; r < kRows; r++) {
        const u32 words[4] = {packed[r].x, packed[r].y, packed[r].z, packed[r].w};
#pragma unroll
        for (int i = 0; i < 8; i++) sum[r] += decoded((u16)(words[i / 2] >> (16 * (i % 2))), bf16) * by[i];
      }
    }
  } else {
    for (u32 c = lane; c < columns; c += 32)
#pragma unroll
      for (u32 r = 0; r < kRows; r++) sum[r] += decoded(row[r][c], bf16) * factor[c];
  }
#pragma unroll
  for (u32 r = 0; r < kRows; r++) {
    for (int offset = 16; offset; offset /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], offset);
    if (lane == 0 && first + r < rows) sums[slot * rows + first + r] = sum[r];
  }
}

// Rows whose two projections lie more than `tolerance` apart or are not both finite; `first`: the first such, as
// slot * rows + row. `squares`: the sums of the squares of the distances and of the wanted projections.
extern "C" __global__ void count_apart(const float* got, const float* wanted, u64 count, float tolerance, u64* apart,
                                       u64* first, double* squares) {
  u64 found = 0;
  double distances = 0, sizes = 0;
  for (u64 i = FIRST; i < count; i += STRIDE) {
    const float distance = got[i] - wanted[i];
    distances += (double)distance * distance;
    sizes += (double)wanted[i] * wanted[i];
    if (!(fabsf(distance) <= tolerance)) {
      found++;
      atomicMin(first, i);
    }
  }
  if (found) atomicAdd(apart, found);
  for (int offset = 16; offset; offset /= 2) {
    distances += __shfl_xor_sync(~0u, distances, offset);
    sizes += __shfl_xor_sync(~0u, sizes, offset);
  }
  if (threadIdx.x % 32 == 0 && sizes > 0) {
    atomicAdd(squares, distances);
    atomicAdd(squares + 1, sizes);
  }
}
