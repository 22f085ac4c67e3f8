/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "layer_norm", "grid": ["ceil(features*dim1*dim2/32768)", 1, 1], "block": [512, 1, 1], "dynamic_smem": 230016,
   "args": [
   {"tensor": "x"}, {"tensor": "ln_weight"}, {"tensor": "ln_bias"}, {"tensor": "out", "access": "write"}, {"workspace": 0},
   {"scalar": "batch_size"}, {"scalar": "features*dim1*dim2"}, {"scalar": "1e-5", "type": "f32"}]}],
 "workspace": {"bytes": "8*(batch_size+1)*ceil(features*dim1*dim2/32768)", "zero": "restored"},
 "requires": ["dim2%4==0", "features*dim1*dim2<=4194304"]
} */
#include <cuda/atomic>
#include <cudal2/bulk.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;
constexpr int kThreads = 512, kWarps = kThreads / 32, kChunk = 4 * kThreads, kChunks = 16, kCapacity = kChunk * kChunks, kSlots = 12;
constexpr int kAhead = 6;  // bias vectors in flight
constexpr unsigned kSlotBytes = kChunk * 4, kRing = kCapacity * 4, kBarriers = kRing + kSlots * kSlotBytes, kSums = kBarriers + 256;
using Word = cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

extern "C" __global__ void __launch_bounds__(512, 1)
layer_norm(const float* x, const float* weight, const float* bias, float* out, unsigned long long* words, int batch, int columns, float eps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned full = base + kBarriers, empty = full + 8 * kSlots, loaded = empty + 8 * kSlots;
  float* sums = reinterpret_cast<float*>(memory + kSums);  // 16 means, 16 squares, mean, scale; from 48 on 16 counts
  const int t = threadIdx.x, warp = t / 32, lane = t % 32, ctas = gridDim.x, cta = blockIdx.x;
  const int first = cta * kCapacity, count = min(kCapacity, columns - first);
  const int chunks = (count + kChunk - 1) / kChunk;
  const int mine = count > 4 * t ? (count - 4 * t + kChunk - 1) / kChunk : 0;  // vectors of this thread
  const float elements = 4.0f * mine, of_warp = warp_sum(elements);
  const float share = mine > 0 ? elements / of_warp : 0.0f;

  if (lane == 0) sums[48 + warp] = of_warp;
  if (t == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, kWarps);
    }
    mbarrier_init(loaded, 1);
    mbarrier_init_fence();
  }
  __syncthreads();

  // Thread 0 loads x in the order in which it is read.
  int to_row = 0, to_chunk = 0, to_slot = 0;
  unsigned to_phase = 1;
  auto issue = [&]() {
    const unsigned bytes = 4u * min(kChunk, count - to_chunk * kChunk), ready = full + 8 * to_slot;
    mbarrier_arrive_expect(ready, bytes);
    bulk_load(base + kRing + to_slot * kSlotBytes, x + static_cast<long long>(to_row) * columns + first + to_chunk * kChunk, bytes, ready,
              l2_policy<1>());
    if (++to_chunk == chunks) {
      to_chunk = 0;
      ++to_row;
    }
    if (++to_slot == kSlots) {
      to_slot = 0;
      to_phase ^= 1;
    }
  };
  auto refill = [&]() {
    if (to_row < batch) {
      mbarrier_wait(empty + 8 * to_slot, to_phase);
      issue();
    }
  };
  if (t == 0) {
    for (int s = 0; s < kSlots && to_row < batch; ++s) issue();
    mbarrier_arrive_expect(loaded, 4u * count);
    bulk_load(base, weight + first, 4u * count, loaded);
  }

  int slot = 0;
  unsigned phase = 0;
  const float4* bias4 = reinterpret_cast<const float4*>(bias + first) + t;
  float4 v[kChunks], ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) v[i] = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = make_float4(0, 0, 0, 0);

  for (int row = -1; row < batch; ++row) {
    const bool old = row >= 0, next = row + 1 < batch;
    float mean = 0, scale = 0;
    if (old) {  // exchange the parts of the row that the registers hold
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i < mine) ahead[i] = __ldg(bias4 + i * kThreads);
      }
      __syncthreads();
      if (warp == 0) {
        unsigned long long* here = words + row * ctas;
        const float m = lane < kWarps ? sums[lane] : 0.0f, n_warp = lane < kWarps ? sums[48 + lane] : 0.0f;
        const float part = warp_sum(m * (n_warp / count));
        const float q = warp_sum((lane < kWarps ? sums[16 + lane] : 0.0f) + n_warp * (m - part) * (m - part));
        if (lane == 0) {
          const unsigned long long high = __float_as_uint(q) | 0x80000000u;
          Word(here[cta]).store(high << 32 | __float_as_uint(part), cuda::memory_order_relaxed);
          refill();  // the slot of the last chunk
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
          sums[32] = joint;
          sums[33] = rsqrtf(total / columns + eps);
          // This CTA reads no words of rows again.
          if (!next) Word(words[batch * ctas + cta]).store(1, cuda::memory_order_release);
        }
      }
      if (row == 0) mbarrier_wait(loaded, 0);
      __syncthreads();
      mean = sums[32];
      scale = sums[33];
    }

    // Chunk i of this row is stored, and chunk i of the next row takes its registers.
    float4* to = reinterpret_cast<float4*>(out + static_cast<long long>(old ? row : 0) * columns + first) + t;
    float average = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const float4 u = v[i];
      if (next && i < chunks) {
        mbarrier_wait(full + 8 * slot, phase);
        if (i < mine) v[i] = *reinterpret_cast<const float4*>(memory + kRing + slot * kSlotBytes + 16 * t);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * slot);
        if (++slot == kSlots) {
          slot = 0;
          phase ^= 1;
        }
      }
      if (old && i < mine) {
        const float4 b = ahead[i % kAhead];
        if (i + kAhead < kChunks && i + kAhead < mine) ahead[i % kAhead] = __ldg(bias4 + (i + kAhead) * kThreads);
        const float4 w = *reinterpret_cast<const float4*>(memory + i * kSlotBytes + 16 * t);
        float4 y;
        y.x = fmaf((u.x - mean) * scale, w.x, b.x);
        y.y = fmaf((u.y - mean) * scale, w.y, b.y);
        y.z = fmaf((u.z - mean) * scale, w.z, b.z);
        y.w = fmaf((u.w - mean) * scale, w.w, b.w);
        __stcs(to + i * kThreads, y);
      }
      if (next && i < mine) {  // join 4 elements with the 4 * i before
        const float4 a = v[i];
        const float m = 0.25f * ((a.x + a.y) + (a.z + a.w)), delta = m - average;
        const float d0 = a.x - m, d1 = a.y - m, d2 = a.z - m, d3 = a.w - m;
        squares += fmaf(d0, d0, d1 * d1) + fmaf(d2, d2, d3 * d3);
        if (i == 0) {
          average = m;
        } else {
          average = fmaf(delta, 1.0f / (i + 1), average);
          squares = fmaf(delta * delta, 4.0f * i / (i + 1), squares);
        }
      }
      if (i > 0 && t == 0 && next && i < chunks) refill();  // the slot of the chunk before
    }
    if (next) {
      const float joint = warp_sum(average * share);
      const float all = warp_sum(squares + elements * (average - joint) * (average - joint));
      if (lane == 0) {
        sums[warp] = joint;
        sums[16 + warp] = all;
      }
    }
  }

  if (cta == 0) {  // the words are zero again for the next run
    if (warp == 0) {
      for (int c = lane; c < ctas; c += 32) {
        while (Word(words[batch * ctas + c]).load(cuda::memory_order_acquire) == 0) {
        }
      }
    }
    __syncthreads();
    for (int i = t; i < (batch + 1) * ctas; i += kThreads) words[i] = 0;
  }
}
