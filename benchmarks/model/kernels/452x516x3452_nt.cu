/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [6, 5, 4], "block": [288, 1, 1], "cluster": [6, 1, 1],
   "dynamic_smem": 218752, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "dims": ["M", "K//2"], "strides": ["2*M"], "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "A", "dims": ["M+4", "K//2"], "strides": ["2*M"], "offset_bytes": 896, "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "B", "dims": ["N", "K//2"], "strides": ["2*N"], "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "B", "dims": ["N+4", "K//2"], "strides": ["2*N"], "offset_bytes": 1024, "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor": "D", "access": "write"},
   {"scalar": "M", "type": "i32"}, {"scalar": "N", "type": "i32"}, {"scalar": "K", "type": "i32"}]}],
 "accumulate": "f32",
 "requires": ["M==452", "N==516", "K%2==0"]
} */
#include <cuda_fp16.h>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;

constexpr int kStages = 5, kStepM = 120, kStepN = 104, kOwnRows = 20;
constexpr unsigned kBox = 64 * 128, kStage = 4 * kBox;
constexpr unsigned kRow = 7 * 64;               // 112 floats of a row: 7 pairs of groups, 4 lanes, 16 bytes
constexpr unsigned kSlot = kOwnRows * kRow;     // what one CTA sends to one CTA
using Product = wgmma_shared<__half, float, 112, 1, 1>;

// Where columns c and c + 1 (c even) of a row lie; c + 2 (c % 4 == 0) lies 16 bytes on.
__device__ __forceinline__ unsigned place(int c) {
  return c / 16 * 64 + c % 16 / 8 * 8 + c % 8 / 2 * 16;
}

extern "C" __global__ void __launch_bounds__(288)
gemm(const __grid_constant__ TensorMap a_even, const __grid_constant__ TensorMap a_odd,
     const __grid_constant__ TensorMap b_even, const __grid_constant__ TensorMap b_odd,
     __half* d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned base = smem_address(memory);
  const unsigned ring = align_up<1024>(base), inbox = ring + kStages * kStage;
  const unsigned full = inbox + 6 * kSlot, empty = full + 8 * kStages, landed = empty + 8 * kStages;
  unsigned char* const inbox_bytes = memory + (inbox - base);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const bool odd = rank >= 3;
  const int third = odd ? rank - 3 : rank;
  const int total = (k / 2 + 63) / 64;
  const int first = total * third / 3, blocks = total * (third + 1) / 3 - first;
  const int row = blockIdx.z * kStepM, column = blockIdx.y * kStepN;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);
    }
    mbarrier_init(landed, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(landed, 5 * kSlot);
  }
  if (threadIdx.x == 256) {
    if (odd) {
      tma_prefetch_map(a_odd);
      tma_prefetch_map(b_odd);
    } else {
      tma_prefetch_map(a_even);
      tma_prefetch_map(b_even);
    }
  }
  launch_dependents();
  __syncthreads();
  cluster_arrive_relaxed();
  wait_for_dependencies();

  if (warp == 8) {
    if (elect_one()) {
      int stage = 0, phase = 1;
      for (int block = 0; block < blocks; ++block) {
        mbarrier_wait(empty + 8 * stage, phase);
        const unsigned to = ring + stage * kStage, ready = full + 8 * stage;
        const int y = (first + block) * 64;
        mbarrier_arrive_expect(ready, kStage);
        if (odd) {
          tma_load(to, a_odd, ready, row, y);
          tma_load(to + kBox, a_odd, ready, row + 64, y);
          tma_load(to + 2 * kBox, b_odd, ready, column, y);
          tma_load(to + 3 * kBox, b_odd, ready, column + 64, y);
        } else {
          tma_load(to, a_even, ready, row, y);
          tma_load(to + kBox, a_even, ready, row + 64, y);
          tma_load(to + 2 * kBox, b_even, ready, column, y);
          tma_load(to + 3 * kBox, b_even, ready, column + 64, y);
        }
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
    __syncwarp();
    cluster_wait();
  } else {
    const int group = warp / 4;
    float sums[Product::kRegisters];
#pragma unroll
    for (int i = 0; i < Product::kRegisters; ++i) sums[i] = 0.0f;
    const unsigned long long a_tile = wgmma_descriptor<128>(ring + group * kBox, kBox, 1024);
    const unsigned long long b_tile = wgmma_descriptor<128>(ring + 2 * kBox, kBox, 1024);
    int stage = 0, phase = 0, before = 0;
    for (int block = 0; block < blocks; ++block) {
      mbarrier_wait(full + 8 * stage, phase);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Product::run(sums, wgmma_advance(a_tile, stage * kStage + step * 2048), wgmma_advance(b_tile, stage * kStage + step * 2048), 1);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (block > 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
      before = stage;
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    wgmma_pin(sums);
    wgmma_wait<0>();
    wgmma_pin(sums);

    cluster_wait();  // the inboxes of all CTAs of the cluster are announced
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = group * 64 + warp % 4 * 16 + h * 8 + lane / 4 - (odd ? 4 : 0);
      if (r >= 0 && r < kStepM) {
        const int to = r / kOwnRows;
        const unsigned offset = rank * kSlot + (r - to * kOwnRows) * kRow + lane % 4 * 16;
        if (to == rank) {
#pragma unroll
          for (int j = 0; j < 7; ++j) {
            *reinterpret_cast<float4*>(inbox_bytes + offset + j * 64) =
                make_float4(sums[8 * j + 2 * h], sums[8 * j + 2 * h + 1], sums[8 * j + 4 + 2 * h], sums[8 * j + 5 + 2 * h]);
          }
        } else {
          const unsigned remote = map_to_rank(inbox + offset, to), bell = map_to_rank(landed, to);
#pragma unroll
          for (int j = 0; j < 7; ++j) {
            store_remote_async(remote + j * 64,
                make_float4(sums[8 * j + 2 * h], sums[8 * j + 2 * h + 1], sums[8 * j + 4 + 2 * h], sums[8 * j + 5 + 2 * h]), bell);
          }
        }
      }
    }
  }

  __syncthreads();  // this CTA's own part of the inbox
  mbarrier_wait(landed, 0);
  for (int unit = threadIdx.x; unit < kOwnRows * (kStepN / 4); unit += 288) {
    const int r = unit / (kStepN / 4), c = unit % (kStepN / 4) * 4;
    const int out_row = row + rank * kOwnRows + r, out_column = column + c;
    if (out_row < m && out_column < n) {
      float2 left = make_float2(0.0f, 0.0f), right = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int s = 0; s < 6; ++s) {
        const unsigned char* from = inbox_bytes + s * kSlot + r * kRow + place(s < 3 ? c : c + 4);
        const float2 x = *reinterpret_cast<const float2*>(from);
        const float2 y = *reinterpret_cast<const float2*>(from + 16);
        left.x += x.x;
        left.y += x.y;
        right.x += y.x;
        right.y += y.y;
      }
      *reinterpret_cast<uint2*>(d + static_cast<long long>(out_row) * n + out_column) =
          make_uint2(pack<__half>(left.x, left.y), pack<__half>(right.x, right.y));
    }
  }
}
