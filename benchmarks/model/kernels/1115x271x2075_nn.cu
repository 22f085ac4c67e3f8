/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [5, 8, 3], "cluster": [1, 1, 3], "block": [160, 1, 1], "dynamic_smem": 107648,
   "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "dims": [2075, 140], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 0}},
   {"tensor_map": {"of": "A", "dims": [2078, 140], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 4144}},
   {"tensor_map": {"of": "A", "dims": [2081, 140], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 8288}},
   {"tensor_map": {"of": "A", "dims": [2076, 139], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 12448}},
   {"tensor_map": {"of": "A", "dims": [2079, 139], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 16592}},
   {"tensor_map": {"of": "A", "dims": [2082, 139], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 20736}},
   {"tensor_map": {"of": "A", "dims": [2077, 139], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 24896}},
   {"tensor_map": {"of": "A", "dims": [2080, 139], "strides": [16600], "box": [64, 144], "swizzle": 128, "l2": 128, "offset_bytes": 29040}},
   {"tensor_map": {"of": "B", "dims": [271, 260], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 0}},
   {"tensor_map": {"of": "B", "dims": [278, 260], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 528}},
   {"tensor_map": {"of": "B", "dims": [277, 260], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 1072}},
   {"tensor_map": {"of": "B", "dims": [276, 259], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 1616}},
   {"tensor_map": {"of": "B", "dims": [275, 259], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 2160}},
   {"tensor_map": {"of": "B", "dims": [274, 259], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 2704}},
   {"tensor_map": {"of": "B", "dims": [273, 259], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 3248}},
   {"tensor_map": {"of": "B", "dims": [272, 259], "strides": [2168], "box": [64, 8], "swizzle": 0, "l2": 128, "offset_bytes": 3792}},
   {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]}],
 "accumulate": "f32",
 "requires": ["M==1115", "N==271", "K==2075"]
} */
#include <cuda_fp16.h>
#include <cudal2/barrier.cuh>
#include <cudal2/bulk.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;

constexpr int kM = 1115, kN = 271, kK = 2075;
constexpr int kStages = 4, kBlocks = 11;
constexpr unsigned kBytesA = 144 * 128, kBytesB = 64 * 128, kStage = kBytesA + kBytesB;  // 26624
constexpr unsigned kPart = 6 * 128 * 16;
constexpr unsigned kTurned = 2 * kPart;  // in the dead ring, behind what the peers push
constexpr unsigned kBarriers = kStages * kStage;
constexpr unsigned kTotalA = static_cast<unsigned>(kM) * kK * 2, kTotalB = static_cast<unsigned>(kK) * kN * 2;
constexpr int kPitch = 33;  // words of a row of the turned tile
using Product = wgmma_registers<__half, float, 160, 0>;

extern "C" __global__ void __launch_bounds__(160, 2)
gemm(const __grid_constant__ TensorMap a0, const __grid_constant__ TensorMap a1, const __grid_constant__ TensorMap a2, const __grid_constant__ TensorMap a3, const __grid_constant__ TensorMap a4, const __grid_constant__ TensorMap a5, const __grid_constant__ TensorMap a6, const __grid_constant__ TensorMap a7,
     const __grid_constant__ TensorMap b0, const __grid_constant__ TensorMap b1, const __grid_constant__ TensorMap b2, const __grid_constant__ TensorMap b3, const __grid_constant__ TensorMap b4, const __grid_constant__ TensorMap b5, const __grid_constant__ TensorMap b6, const __grid_constant__ TensorMap b7,
     const __half* a, const __half* b, __half* d) {
  extern __shared__ unsigned char memory[];
  const unsigned base = align_up<1024>(smem_address(memory));
  unsigned char* const bytes = memory + (base - smem_address(memory));
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const int n0 = blockIdx.x * 56, residue = blockIdx.y, s = 3 * residue & 7, parity = s & 1;
  const unsigned full = base + kBarriers, empty = full + 8 * kStages, received = empty + 8 * kStages;
  const TensorMap* map = residue == 0 ? &a0 : residue == 1 ? &a1 : residue == 2 ? &a2 : residue == 3 ? &a3 :
      residue == 4 ? &a4 : residue == 5 ? &a5 : residue == 6 ? &a6 : &a7;

  launch_dependents();
  if (tid == 0) {
    const unsigned cta = (blockIdx.z * 8 + blockIdx.y) * 5 + blockIdx.x;
    constexpr unsigned kSliceA = kTotalA / 16 / 120, kSliceB = kTotalB / 16 / 120;
    bulk_prefetch(reinterpret_cast<const unsigned char*>(b) + cta * kSliceB * 16, kSliceB * 16);
    bulk_prefetch(reinterpret_cast<const unsigned char*>(a) + cta * kSliceA * 16, kSliceA * 16);
  }
  if (tid == 128) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 4);
    }
    mbarrier_init(received, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(received, 2 * kPart);
    tma_prefetch_map(*map);
    tma_prefetch_map(b0);
    tma_prefetch_map(b1);
    tma_prefetch_map(b2);
    tma_prefetch_map(b3);
    tma_prefetch_map(b4);
    tma_prefetch_map(b5);
    tma_prefetch_map(b6);
    tma_prefetch_map(b7);
  }
  __syncthreads();
  wait_for_dependencies();

  if (warp == 4) {
    if (elect_one()) {
#pragma unroll 1
      for (int block = 0; block < kBlocks; ++block) {
        const unsigned slot = block % kStages, stage = base + slot * kStage, ready = full + 8 * slot;
        mbarrier_wait(empty + 8 * slot, block / kStages % 2 ^ 1);
        mbarrier_arrive_expect(ready, kStage);
        const int number = rank * kBlocks + block;
        tma_load(stage, *map, ready, number * 64, 0);
        // Row i of the block is k = 64 * number - s + i; the rows of residue p of k are i = (p + s) mod 8 and every eighth.
        const unsigned part = stage + kBytesA;
        tma_load(part + ((0 + s) & 7) * 1024, b0, ready, n0, number * 8 - (0 + s >= 8));
        tma_load(part + ((1 + s) & 7) * 1024, b1, ready, n0, number * 8 - (1 + s >= 8));
        tma_load(part + ((2 + s) & 7) * 1024, b2, ready, n0, number * 8 - (2 + s >= 8));
        tma_load(part + ((3 + s) & 7) * 1024, b3, ready, n0, number * 8 - (3 + s >= 8));
        tma_load(part + ((4 + s) & 7) * 1024, b4, ready, n0, number * 8 - (4 + s >= 8));
        tma_load(part + ((5 + s) & 7) * 1024, b5, ready, n0, number * 8 - (5 + s >= 8));
        tma_load(part + ((6 + s) & 7) * 1024, b6, ready, n0, number * 8 - (6 + s >= 8));
        tma_load(part + ((7 + s) & 7) * 1024, b7, ready, n0, number * 8 - (7 + s >= 8));
      }
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    return;
  }

  // Words of B in a stage for this lane: an even row of k and the odd one beside it, columns 8 * g + 2 * warp and the next one.
  const int column = 4 * (g < 7 ? g : 6) + warp;
  const int row_e = 2 * t + parity, row_o = 2 * t + 1 - parity;
  const int shift_e = (s - row_e) & 7, shift_o = (s - row_o) & 7;
  const int word_e = static_cast<int>(kBytesA) / 4 + row_e * 256 + (shift_e >> 1) + column;
  const int word_o = static_cast<int>(kBytesA) / 4 + row_o * 256 + (shift_o >> 1) + column;
  const unsigned pick_low = parity ? 0x1076u : 0x7610u, pick_high = parity ? 0x3254u : 0x5432u;

  float sums[Product::kRegisters];
  unsigned fragments[2][4][4];
  const unsigned long long tile = wgmma_descriptor<128>(base, 0, 1024);

  auto multiply = [&](int block, unsigned (&parts)[4][4], unsigned (&before)[4][4]) {
    const unsigned slot = block % kStages;
    mbarrier_wait(full + 8 * slot, block / kStages % 2);
    if (block == 0 && rank == 0 && s > 0) {  // what lies before k = 0 is the end of the row before
      for (int row = tid; row < 144; row += 128) {
        unsigned short* piece = reinterpret_cast<unsigned short*>(bytes + row * 128 + (row % 8) * 16);
        for (int i = 0; i < s; ++i) piece[i] = 0;
      }
      fence_proxy_async();
      named_barrier(1, 128);
    }
    const unsigned* words = reinterpret_cast<const unsigned*>(bytes + slot * kStage);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = (2 * step + h) * 32;
        const unsigned even = words[word_e + at], odd = words[word_o + at], next = words[word_o + at + 1];
        parts[step][2 * h] = __byte_perm(even, odd, pick_low);
        parts[step][2 * h + 1] = __byte_perm(even, next, pick_high);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      Product::run(sums, parts[step], wgmma_advance(tile, slot * kStage + step * 32), block + step > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0) {  // the block before has been read
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_pin(before[step]);
      if (lane == 0) mbarrier_arrive(empty + 8 * ((block - 1) % kStages));
    }
  };
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) multiply(block, fragments[block % 2], fragments[(block + 1) % 2]);
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma_pin(fragments[(kBlocks - 1) % 2][step]);

  cluster_arrive();  // releases: the peers' pushes come behind the copies that filled the ring
  cluster_wait();  // no CTA of the cluster reads its ring any more

  // Groups of 8 columns (q) 6 * owner to 6 * owner + 5 go to their owner.
  float4 own[6];
#pragma unroll
  for (int owner = 0; owner < 3; ++owner) {
    if (owner == rank) {
#pragma unroll
      for (int j = 0; j < 6; ++j) {
        const int i = 4 * (6 * owner + j);
        own[j] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
      }
    } else {
      const unsigned slot = static_cast<unsigned>((rank - owner + 3) % 3 - 1);
      const unsigned to = map_to_rank(base + slot * kPart + tid * 16, owner);
      const unsigned barrier = map_to_rank(received, owner);
#pragma unroll
      for (int j = 0; j < 6; ++j) {
        const int i = 4 * (6 * owner + j);
        store_remote_async(to + j * 128 * 16, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]), barrier);
      }
    }
  }
  mbarrier_wait(received, 0);
  unsigned* const turned = reinterpret_cast<unsigned*>(bytes + kTurned);
#pragma unroll
  for (int j = 0; j < 6; ++j) {
    const float4 first = *reinterpret_cast<const float4*>(bytes + (j * 128 + tid) * 16);
    const float4 second = *reinterpret_cast<const float4*>(bytes + kPart + (j * 128 + tid) * 16);
    const float x = own[j].x + first.x + second.x, y = own[j].y + first.y + second.y;
    const float z = own[j].z + first.z + second.z, w = own[j].w + first.w + second.w;
    if (g < 7) {  // x and z: columns n and n + 1 of row q; y and w: of row q + 1
      turned[(8 * j + 2 * t) * kPitch + 4 * g + warp] = pack<__half>(x, z);
      turned[(8 * j + 2 * t + 1) * kPitch + 4 * g + warp] = pack<__half>(y, w);
    }
  }
  named_barrier(1, 128);
  const __half* const halves = reinterpret_cast<const __half*>(turned);
#pragma unroll
  for (int i = 0; i < 12; ++i) {
    const int q = warp + 4 * i, m = 8 * (48 * rank + q) + residue;
    if (m < kM) {
      if (n0 + lane < kN) d[m * kN + n0 + lane] = halves[q * 2 * kPitch + lane];
      if (lane < 24 && n0 + 32 + lane < kN) d[m * kN + n0 + 32 + lane] = halves[q * 2 * kPitch + 32 + lane];
    }
  }
}
