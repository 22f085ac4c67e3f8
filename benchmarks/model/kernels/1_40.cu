/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "layer_norm", "grid": ["ceil(features*dim1*dim2/32768)", 1, 1], "block": [640, 1, 1], "dynamic_smem": 231680,
   "args": [
   {"tensor": "x"}, {"tensor": "ln_weight"}, {"tensor": "ln_bias"}, {"tensor": "out", "access": "write"}, {"workspace": 0},
   {"scalar": "batch_size"}, {"scalar": "features*dim1*dim2"}, {"scalar": "1e-5", "type": "f32"}]}],
 "workspace": {"bytes": "8*(batch_size+1)*ceil(features*dim1*dim2/32768)", "zero": "restored"},
 "requires": ["dim2%4==0", "features*dim1*dim2<=4194304", "batch_size<=32"]
} */
#include <cuda/atomic>
#include <cudal2/bulk.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/registers.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;
constexpr int kWriters = 512, kWriterWarps = kWriters / 32, kThreads = kWriters + 128;
constexpr int kChunk = 4 * kWriters, kChunks = 16, kCapacity = kChunk * kChunks, kSlots = 28, kRows = 32;
constexpr int kAhead = 4;                            // bias vectors in flight
constexpr int kStatWarps = 2, kStat = 32 * kStatWarps, kVectors = kChunk / 4 / kStat;  // vectors of a statistics thread in a chunk
constexpr unsigned kSlotBytes = kChunk * 4, kBarriers = kSlots * kSlotBytes, kParts = kBarriers + 1024, kResults = kParts + kRows * kStatWarps * 16;
static_assert(8 * (2 * kSlots + 2 * kRows) <= 1024 && kResults + 8 * kRows == 231680, "shared memory");
using Word = cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

struct Ring {
  int slot = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
layer_norm(const float* x, const float* weight, const float* bias, float* out, unsigned long long* words, int batch, int columns, float eps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned full = base + kBarriers, empty = full + 8 * kSlots, counted = empty + 8 * kSlots, ready = counted + 8 * kRows;
  float4* parts = reinterpret_cast<float4*>(memory + kParts);      // of a statistics warp: mean, squares, elements
  float2* results = reinterpret_cast<float2*>(memory + kResults);  // of a row: mean, scale
  const int t = threadIdx.x, warp = t / 32, lane = t % 32, ctas = gridDim.x, cta = blockIdx.x;
  const int first = cta * kCapacity, count = min(kCapacity, columns - first);
  const int chunks = (count + kChunk - 1) / kChunk;

  if (t < 2 * kSlots + 2 * kRows) {
    const int arrivals = t < kSlots ? 1 : t < 2 * kSlots ? kWriterWarps : t < 2 * kSlots + kRows ? kStatWarps : 1;
    mbarrier_init(full + 8 * t, arrivals);
    mbarrier_init_fence();
  }
  __syncthreads();

  if (warp >= kWriterWarps) {
    registers_decrease<64>();
    if (warp == kWriterWarps + 3) {  // the producer
      if (lane == 0) {
        Ring ring;
        int filled = 0;
        for (int row = 0; row < batch; ++row) {
          const float* from = x + static_cast<long long>(row) * columns + first;
          for (int i = 0; i < chunks; ++i) {
            if (filled >= kSlots) mbarrier_wait(empty + 8 * ring.slot, ring.phase ^ 1);
            ++filled;
            const unsigned bytes = 4u * min(kChunk, count - i * kChunk);
            mbarrier_arrive_expect(full + 8 * ring.slot, bytes);
            bulk_load(base + ring.slot * kSlotBytes, from + i * kChunk, bytes, full + 8 * ring.slot, l2_policy<1>());
            ring.advance();
          }
        }
      }
    } else if (warp == kWriterWarps + 2) {  // the exchange
      for (int row = 0; row < batch; ++row) {
        unsigned long long* here = words + row * ctas;
        mbarrier_wait(counted + 8 * row, 0);
        if (lane == 0) {
          const float4 a = parts[row * kStatWarps], b = parts[row * kStatWarps + 1];
          float part = a.x, q = a.y;
          if (b.z > 0) {
            const float d = b.x - a.x, share = b.z / (a.z + b.z);
            part = fmaf(d, share, a.x);
            q = a.y + b.y + d * d * (a.z * share);
          }
          const unsigned long long high = __float_as_uint(q) | 0x80000000u;
          Word(here[cta]).store(high << 32 | __float_as_uint(part), cuda::memory_order_relaxed);
        }
        __syncwarp();
        unsigned long long word[4];
        bool complete;
        do {
          complete = true;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            word[j] = 1ull << 63;
            if (lane + 32 * j < ctas) word[j] = Word(here[lane + 32 * j]).load(cuda::memory_order_relaxed);
            complete = complete && (word[j] >> 63) != 0;
          }
        } while (!complete);
        __syncwarp();
        float joint = 0, total = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int c = lane + 32 * j;
          if (c < ctas) {
            const float n = static_cast<float>(min(kCapacity, columns - c * kCapacity));
            joint = fmaf(__uint_as_float(static_cast<unsigned>(word[j])), n / columns, joint);
          }
        }
        joint = warp_sum(joint);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int c = lane + 32 * j;
          if (c < ctas) {
            const float d = __uint_as_float(static_cast<unsigned>(word[j])) - joint;
            const float n = static_cast<float>(min(kCapacity, columns - c * kCapacity));
            total += __uint_as_float(static_cast<unsigned>(word[j] >> 32) & 0x7fffffffu) + n * d * d;
          }
        }
        total = warp_sum(total);
        if (lane == 0) {
          results[row] = make_float2(joint, rsqrtf(total / columns + eps));
          mbarrier_arrive(ready + 8 * row);
        }
        __syncwarp();
      }
      // This CTA reads no words again; those of all are zero again for the next run.
      if (lane == 0) Word(words[batch * ctas + cta]).store(1, cuda::memory_order_release);
      if (cta == 0) {
        for (int c = lane; c < ctas; c += 32) {
          while (Word(words[batch * ctas + c]).load(cuda::memory_order_acquire) == 0) {
          }
        }
        __syncwarp();
        for (int i = lane; i < (batch + 1) * ctas; i += 32) words[i] = 0;
      }
    } else {  // statistics
      const int s = t - kWriters;
      Ring ring;
      for (int row = 0; row < batch; ++row) {
        float n = 0, average = 0, squares = 0;
        for (int i = 0; i < chunks; ++i) {
          mbarrier_wait(full + 8 * ring.slot, ring.phase);
          const float4* slot = reinterpret_cast<const float4*>(memory + ring.slot * kSlotBytes) + s;
          const int left = count - i * kChunk;
          if (left >= kChunk) {
            float4 v[kVectors];
#pragma unroll
            for (int j = 0; j < kVectors; ++j) v[j] = slot[j * kStat];
            float4 sum = v[0];
#pragma unroll
            for (int j = 1; j < kVectors; ++j) sum = make_float4(sum.x + v[j].x, sum.y + v[j].y, sum.z + v[j].z, sum.w + v[j].w);
            constexpr float kElements = 4 * kVectors;
            const float m = ((sum.x + sum.y) + (sum.z + sum.w)) * (1.0f / kElements);
            float4 q = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < kVectors; ++j) {
              const float d0 = v[j].x - m, d1 = v[j].y - m, d2 = v[j].z - m, d3 = v[j].w - m;
              q = make_float4(fmaf(d0, d0, q.x), fmaf(d1, d1, q.y), fmaf(d2, d2, q.z), fmaf(d3, d3, q.w));
            }
            squares += (q.x + q.y) + (q.z + q.w);
            const float all = n + kElements, share = kElements / all, delta = m - average;
            average = n > 0 ? fmaf(delta, share, average) : m;
            if (n > 0) squares = fmaf(delta * delta, n * share, squares);
            n = all;
          } else {
            for (int j = 0; j < kVectors; ++j) {
              if (4 * (s + j * kStat) < left) {
                const float4 a = slot[j * kStat];
                const float m = 0.25f * ((a.x + a.y) + (a.z + a.w));
                const float d0 = a.x - m, d1 = a.y - m, d2 = a.z - m, d3 = a.w - m;
                squares += fmaf(d0, d0, d1 * d1) + fmaf(d2, d2, d3 * d3);
                const float all = n + 4, share = 4 / all, delta = m - average;
                average = n > 0 ? fmaf(delta, share, average) : m;
                if (n > 0) squares = fmaf(delta * delta, n * share, squares);
                n = all;
              }
            }
          }
          ring.advance();
        }
        const float of_warp = warp_sum(n);
        const float joint = warp_sum(n > 0 ? average * (n / of_warp) : 0.0f);
        const float off = average - joint;
        const float all = warp_sum(n > 0 ? squares + n * (off * off) : 0.0f);
        if (lane == 0) {
          parts[row * kStatWarps + warp - kWriterWarps] = make_float4(joint, all, of_warp, 0);
          mbarrier_arrive(counted + 8 * row);
        }
        __syncwarp();
      }
    }
  } else {
    registers_increase<104>();
    const int mine = count > 4 * t ? (count - 4 * t + kChunk - 1) / kChunk : 0;  // vectors of this thread
    const float4* weight4 = reinterpret_cast<const float4*>(weight + first) + t;
    const float4* bias4 = reinterpret_cast<const float4*>(bias + first) + t;
    float4 w[kChunks], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      w[i] = make_float4(0, 0, 0, 0);
      if (i < mine) w[i] = __ldg(weight4 + i * kWriters);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = make_float4(0, 0, 0, 0);
      if (i < mine) ahead[i] = __ldg(bias4 + i * kWriters);
    }
    Ring ring;
    float4* to = reinterpret_cast<float4*>(out + first) + t;
    const int pitch = columns / 4;
    for (int row = 0; row < batch; ++row, to += pitch) {
      mbarrier_wait(ready + 8 * row, 0);
      const float2 result = results[row];
      const float mean = result.x, scale = result.y;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const float4 b = ahead[i % kAhead];
        const int next = (i + kAhead) % kChunks;
        if (next < mine) ahead[i % kAhead] = __ldg(bias4 + next * kWriters);
        if (i < chunks) {
          mbarrier_wait(full + 8 * ring.slot, ring.phase);
          if (i < mine) {
            const float4 u = *reinterpret_cast<const float4*>(memory + ring.slot * kSlotBytes + 16 * t);
            float4 y;
            y.x = fmaf((u.x - mean) * scale, w[i].x, b.x);
            y.y = fmaf((u.y - mean) * scale, w[i].y, b.y);
            y.z = fmaf((u.z - mean) * scale, w[i].z, b.z);
            y.w = fmaf((u.w - mean) * scale, w[i].w, b.w);
            __stcs(to + i * kWriters, y);
          }
          __syncwarp();
          if (lane == 0) mbarrier_arrive(empty + 8 * ring.slot);
          ring.advance();
        }
      }
    }
  }
}
