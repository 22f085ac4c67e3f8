/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": [5, 5, 4], "block": [288, 1, 1], "cluster": [5, 1, 1],
   "dynamic_smem": 229504, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "dims": ["M", "K//2"], "strides": ["2*M"], "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "A", "dims": ["M+4", "K//2"], "strides": ["2*M"], "offset_bytes": 896, "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "B", "dims": ["N", "K//2"], "strides": ["2*N"], "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor_map": {"of": "B", "dims": ["N+4", "K//2"], "strides": ["2*N"], "offset_bytes": 1024, "box": [64, 64], "swizzle": 128, "l2": 256}},
   {"tensor": "A"}, {"tensor": "B"},
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

constexpr int kRanks = 5, kSlots = 6;           // CTAs of a cluster; the middle one sends sums of either parity
constexpr int kStages = 5, kStepM = 120, kStepN = 104, kMostRows = 24;
constexpr unsigned kBox = 64 * 128, kStage = 4 * kBox;
constexpr unsigned kRow = 7 * 64;               // 112 floats of a row: 7 pairs of groups, 4 lanes, 16 bytes
constexpr unsigned kSlot = kMostRows * kRow;    // what comes from one sender
using Product = wgmma_shared<__half, float, 112, 1, 1>;

// A row of an inbox: piece 4 j + l (16 bytes) holds columns 16 j + 2 l and the next one, and the two 8 columns further on.
constexpr int kPieces = 28;

// Asks for [begin, end) of an operand, in pieces of 1024 bytes, to come into L2; nothing waits for it.
__device__ __forceinline__ void bring_into_l2(const void* operand, unsigned bytes, unsigned thread, unsigned threads) {
  for (unsigned at = thread * 1024; at < bytes; at += threads * 1024) {
    const unsigned size = min(1024u, bytes - at);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(operand) + at), "r"(size) : "memory");
  }
}

// Blocks of 64 rows of one parity: [begin, end) of the even or of the odd view.
struct Piece {
  int begin, end;
  bool odd;
};

// Piece 0 or, in the middle CTA, 1 of a CTA's part of K. Both parities have `blocks` blocks.
__device__ __forceinline__ Piece piece_of(int rank, int number, int blocks) {
  const int most = min((2 * blocks + 3) / 5, blocks / 2);  // blocks of CTAs 0, 1, 3 and 4
  const int rest = blocks - 2 * most;                      // of either parity, for CTA 2
  if (rank < 2) return {rank * most, (rank + 1) * most, false};
  if (rank > 2) return {rest + (rank - 3) * most, rest + (rank - 2) * most, true};
  if (number == 0) return {2 * most, blocks, false};
  return {0, rest, true};
}

// Rows of half h, groups 2 j and 2 j + 1 of columns, or with `later` groups 2 j + 1 and 2 j + 2.
__device__ __forceinline__ float4 piece_of_sums(const float (&sums)[Product::kRegisters], int j, int h, bool later) {
  const int g = 8 * j + 2 * h;
  const float x = sums[g], y = sums[g + 1], z = sums[g + 4], w = sums[g + 5];
  const float next = j < 6 ? sums[(g + 8) % 56] : 0.0f, after = j < 6 ? sums[(g + 9) % 56] : 0.0f;
  return later ? make_float4(z, w, next, after) : make_float4(x, y, z, w);
}

extern "C" __global__ void __launch_bounds__(288)
gemm(const __grid_constant__ TensorMap a_even, const __grid_constant__ TensorMap a_odd,
     const __grid_constant__ TensorMap b_even, const __grid_constant__ TensorMap b_odd,
     const __half* a_memory, const __half* b_memory, __half* d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned base = smem_address(memory);
  const unsigned ring = align_up<1024>(base), inbox = ring + kStages * kStage;
  const unsigned full = inbox + kSlots * kSlot, empty = full + 8 * kStages, landed = empty + 8 * kStages;
  unsigned char* const inbox_bytes = memory + (inbox - base);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int pieces = rank == 2 ? 2 : 1;
  const int blocks = (k / 2 + 63) / 64;
  const int row = blockIdx.z * kStepM, column = blockIdx.y * kStepN;
  const int valid = min(kStepM, m - row);                    // rows of the tile inside of D
  const int own = (valid + kRanks - 1) / kRanks;             // rows that a CTA sums and stores
  const int count = max(0, min(own, valid - rank * own));    // of this CTA

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);
    }
    mbarrier_init(landed, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(landed, (kSlots - pieces) * count * kRow);
  }
  if (threadIdx.x == 256) {
    if (rank <= 2) {
      tma_prefetch_map(a_even);
      tma_prefetch_map(b_even);
    }
    if (rank >= 2) {
      tma_prefetch_map(a_odd);
      tma_prefetch_map(b_odd);
    }
  }
  launch_dependents();
  // The first three clusters find room beside the 20 of the launch before: while that works they bring A and B into L2.
  if (blockIdx.z == 0 && blockIdx.y < 3) {
    const unsigned thread = (blockIdx.y * kRanks + blockIdx.x) * 288 + threadIdx.x, threads = 3 * kRanks * 288;
    bring_into_l2(a_memory, 2u * m * k, thread, threads);
    bring_into_l2(b_memory, 2u * n * k, threads - 1 - thread, threads);
  }
  __syncthreads();
  cluster_arrive_relaxed();
  wait_for_dependencies();

  if (warp == 8) {
    if (elect_one()) {
      int stage = 0, phase = 1;
#pragma unroll 1
      for (int number = 0; number < pieces; ++number) {
        const Piece piece = piece_of(rank, number, blocks);
        for (int block = piece.begin; block < piece.end; ++block) {
          mbarrier_wait(empty + 8 * stage, phase);
          const unsigned to = ring + stage * kStage, ready = full + 8 * stage;
          const int y = block * 64;
          mbarrier_arrive_expect(ready, kStage);
          if (piece.odd) {
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
    }
    __syncwarp();
    cluster_wait();
  } else {
    cluster_wait();  // the inboxes of all CTAs of the cluster are announced
    const int group = warp / 4;
    const unsigned long long a_tile = wgmma_descriptor<128>(ring + group * kBox, kBox, 1024);
    const unsigned long long b_tile = wgmma_descriptor<128>(ring + 2 * kBox, kBox, 1024);
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int number = 0; number < pieces; ++number) {
      const Piece piece = piece_of(rank, number, blocks);
      float sums[Product::kRegisters];
#pragma unroll
      for (int i = 0; i < Product::kRegisters; ++i) sums[i] = 0.0f;
      int before = -1;
      for (int block = piece.begin; block < piece.end; ++block) {
        mbarrier_wait(full + 8 * stage, phase);
        wgmma_pin(sums);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Product::run(sums, wgmma_advance(a_tile, stage * kStage + step * 2048), wgmma_advance(b_tile, stage * kStage + step * 2048), 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
        before = stage;
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
      wgmma_pin(sums);
      wgmma_wait<0>();
      wgmma_pin(sums);
      if (before >= 0 && lane == 0) mbarrier_arrive(empty + 8 * before);

      const unsigned slot = (rank + (piece.odd ? 1 : 0)) * kSlot;
      // Odd sums lie 4 columns further on than in D: the first two lanes of four hold the last columns of the group before.
      const bool early = piece.odd && lane % 4 < 2;
      const int place = piece.odd ? (lane + 2) % 4 : lane % 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = group * 64 + warp % 4 * 16 + h * 8 + lane / 4 - (piece.odd ? 4 : 0);
        if (r >= 0 && r < valid) {
          const int to = r / own;
          const unsigned offset = slot + (r - to * own) * kRow + place * 16;
          if (to == rank) {
#pragma unroll
            for (int j = 0; j < 7; ++j) {
              *reinterpret_cast<float4*>(inbox_bytes + offset + j * 64) = piece_of_sums(sums, j, h, early);
            }
          } else {
            const unsigned remote = map_to_rank(inbox + offset, to), bell = map_to_rank(landed, to);
#pragma unroll
            for (int j = 0; j < 7; ++j) store_remote_async(remote + j * 64, piece_of_sums(sums, j, h, early), bell);
          }
        }
      }
    }
  }

  __syncthreads();  // this CTA's own part of the inbox
  mbarrier_wait(landed, 0);
  const int total = count * kPieces;
  for (int base_unit = warp * 32; base_unit < total; base_unit += 288) {
    const bool inside = base_unit + lane < total;
    const int unit = inside ? base_unit + lane : total - 1;
    const int r = unit / kPieces, p = unit % kPieces;
    const unsigned from = inbox + r * kRow + p * 16;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const float4 part = load_shared(from + s * kSlot);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    // Of two lanes the even one stores 4 columns of the first group, the odd one 4 of the second.
    const unsigned near = pack<__half>(sum.x, sum.y), far = pack<__half>(sum.z, sum.w);
    const bool odd = lane % 2 != 0;
    const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? near : far, 1);
    const int c = p / 4 * 16 + p % 4 / 2 * 4 + (odd ? 8 : 0);
    const int out_row = row + rank * own + r, out_column = column + c;
    if (inside && c < kStepN && out_row < m && out_column < n) {
      *reinterpret_cast<uint2*>(d + static_cast<long long>(out_row) * n + out_column) =
          odd ? make_uint2(other, far) : make_uint2(near, other);
    }
  }
}

