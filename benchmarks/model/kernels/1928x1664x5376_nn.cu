/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "gemm", "grid": ["2+2*(ceil((M-8)/192)*(ceil(N/128)//2)+(ceil(N/128)%2)*ceil((M-8)/384))", 1, 1], "cluster": [2, 1, 1], "block": [288, 1, 1],
   "dynamic_smem": 211072, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "box": [64, 96], "swizzle": 128}},
   {"tensor_map": {"of": "A", "box": [64, 104], "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 192], "swizzle": 128}},
   {"tensor_map": {"of": "D", "box": [64, 200], "swizzle": 128}},
   {"tensor": "A"}, {"tensor": "B"}, {"workspace": 0}, {"workspace": 1024},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "workspace": {"bytes": "1024+102400*ceil(N/128)", "zero": "restored", "zero_bytes": 1024},
 "accumulate": "f32",
 "requires": ["K%8==0", "N%8==0", "M>=16", "N<=32768"]
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
#include <cudal2/stmatrix.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;
constexpr int kNarrow = 192, kWide = 200, kUpper = 96;  // rows of M in a tile; rows in the first of A's two boxes
constexpr int BLOCK_N = 128, BLOCK_K = 64, kStages = 5;
constexpr unsigned kBox = 64 * 128;                     // 64 of K x 64 of N
constexpr unsigned kBytesB = 2 * kBox;                  // of B
constexpr unsigned kStage = kWide * 128 + kBytesB;      // 41984, a multiple of 1024
constexpr int kWarm = 256;                              // of K, prefetched by the helpers
constexpr int kParts = 3;                               // entries of the ring that bring a helper's sums
constexpr int kVectors = kWide / 8;                     // float4 of sums a thread: 25, in parts of 10, 10 and 5
constexpr int kTileVectors = kVectors * 256;            // float4 of a tile

// d(64 x 200) += a(64 x 16, M-major) * b(16 x 200, K-major)
__device__ __forceinline__ void multiply(float (&d)[100], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n200k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
      "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
      "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99}, "
      "%100, %101, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
        "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void multiply(float (&d)[96], unsigned long long a, unsigned long long b) {
  wgmma_shared<__half, float, 192, 0, 1>::run(d, a, b, 1);
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// How many float4 of a thread are in a part, and where a part of a tile begins, in float4.
__device__ __forceinline__ constexpr int part_vectors(int part) { return part + 1 < kParts ? 10 : kVectors - 10 * (kParts - 1); }
__device__ __forceinline__ constexpr int part_begin(int part) { return part * 2560; }

struct Ring {
  unsigned ring, full, empty;
  int s, parity;
  __device__ __forceinline__ void next() {
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
  }
};

// Multiplies `count` blocks that come through the ring. Every stage but the last is released; its barrier is returned.
template <int kRows>
__device__ __forceinline__ unsigned multiply_blocks(float (&sums)[kRows / 2], Ring& r, int count, int warpgroup, bool releases, int releases_rank) {
  const unsigned long long left = wgmma_descriptor<128>(r.ring + warpgroup * kBox, kBox, 1024);  // 64 columns of N
  const unsigned long long right = wgmma_descriptor<128>(r.ring + kBytesB, 0, 1024);             // rows of M
  unsigned before = r.empty;
  for (int block = 0; block < count; ++block) {
    const unsigned stage = r.s * kStage;
    mbarrier_wait(r.full + 8 * r.s, r.parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; ++step) {
      multiply(sums, wgmma_advance(left, stage + step * 2048), wgmma_advance(right, stage + step * 32));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && releases) mbarrier_arrive_remote(before, releases_rank);  // the block before has been read
    before = r.empty + 8 * r.s;
    r.next();
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  return before;
}

// A warpgroup: 64 columns of N x kRows rows of M, turned; then its part of D.
template <int kRows>
__device__ __forceinline__ void consume(const TensorMap& d, unsigned char* memory, Ring r, int warpgroup, int lane, int count, bool helped,
                                        bool releases, int releases_rank, int row, int column, int m, int n) {
  float sums[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = 0.0f;
  const unsigned before = multiply_blocks<kRows>(sums, r, count, warpgroup, releases, releases_rank);
  if (releases) mbarrier_arrive_remote(before, releases_rank);
  if constexpr (kRows == kWide) {
    if (helped) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        mbarrier_wait(r.full + 8 * r.s, r.parity);
        const float4* from = reinterpret_cast<const float4*>(memory + (r.ring + r.s * kStage - smem_address(memory))) +
                             warpgroup * (part_vectors(part) * 128) + threadIdx.x % 128;
#pragma unroll
        for (int j = 0; j < part_vectors(part); ++j) {
          const float4 value = from[j * 128];
          float* to = sums + 4 * (10 * part + j);
          to[0] += value.x;
          to[1] += value.y;
          to[2] += value.z;
          to[3] += value.w;
        }
        __syncwarp();
        if (releases) mbarrier_arrive_remote(r.empty + 8 * r.s, releases_rank);
        r.next();
      }
    }
  }

  named_barrier(1, 256);  // both warpgroups have read the last stages: the ring becomes the staging of D
  const unsigned mine = r.ring + warpgroup * kRows * 128;
  const int warp = threadIdx.x % 128 / 32;
  // Tiles of 8 x 8: lanes 0-7 address tile 0 (columns 0-7 of the warp's 16), 8-15 tile 1 (columns 8-15), 16-31 the same 8 rows on.
  const int chunk = warp * 2 + lane / 8 % 2, line = lane / 16 * 8 + lane % 8;
  const unsigned to = mine + line * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
  for (int j = 0; j < kRows / 16; ++j) {
    const float* v = sums + 8 * j;
    stmatrix_x4_transposed(to + j * 2048, pack<__half>(v[0], v[1]), pack<__half>(v[2], v[3]), pack<__half>(v[4], v[5]), pack<__half>(v[6], v[7]));
  }
  if constexpr (kRows % 16 == 8) {
    // The last 8 rows: lanes 0-15 address two tiles (the others repeat their addresses).
    constexpr int kLast = kRows / 2 - 4;
    const unsigned tail = mine + (kRows - 8 + lane % 8) * 128 + ((chunk ^ lane % 8) << 4);
    stmatrix_x2_transposed(tail, pack<__half>(sums[kLast], sums[kLast + 1]), pack<__half>(sums[kLast + 2], sums[kLast + 3]));
  }
  fence_proxy_async();
  named_barrier(2 + warpgroup, 128);
  if (threadIdx.x % 128 == 0 && column + 64 * warpgroup < n && row < m) {  // a store must start inside of D
    tma_store(d, mine, column + 64 * warpgroup, row);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

// A CTA computes 192 or 200 rows x 128 columns of D, turned: warpgroups 0 and 1 have 64 columns each, warp 8 loads.
// The first two CTAs help: they multiply the last `off` blocks of K of the wide tiles.
extern "C" __global__ void __launch_bounds__(288)
gemm(const __grid_constant__ TensorMap a_96, const __grid_constant__ TensorMap a_104, const __grid_constant__ TensorMap b,
     const __grid_constant__ TensorMap d_narrow, const __grid_constant__ TensorMap d_wide,
     const __half* a_rows, const __half* b_rows, unsigned* flags, float* parts, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  Ring r;
  r.ring = align_up<1024>(smem_address(memory));
  r.full = r.ring + kStages * kStage;
  r.empty = r.full + 8 * kStages;
  r.s = 0;
  r.parity = 0;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);  // uniform for the compiler
  const int lane = threadIdx.x % 32, blocks = (k + BLOCK_K - 1) / BLOCK_K;
  const int off = blocks - (blocks * kNarrow + kWide - 1) / kWide;  // blocks of a wide tile that the helpers take
  // Clusters: the helpers; then two tiles of N that share A's rows; then, for an odd last tile of N, two tiles of M that share nothing.
  const int tiles_m = (m - 8 + kNarrow - 1) / kNarrow, tiles_n = (n + BLOCK_N - 1) / BLOCK_N, pairs_n = tiles_n / 2;
  const int cluster = static_cast<int>(blockIdx.x / 2) - 1, rank = blockIdx.x % 2;
  const bool helper = cluster < 0, share_a = !helper && cluster < tiles_m * pairs_n;
  const int last_row = (tiles_m - 1) * kNarrow;
  const bool wide_last = m - last_row > kNarrow;
  const int tile = share_a ? cluster % tiles_m : (cluster - tiles_m * pairs_n) * 2 + rank;
  const int row = helper ? last_row : tile * kNarrow;
  const int tile_n = share_a ? cluster / tiles_m * 2 + rank : pairs_n * 2;
  const int column = tile_n * BLOCK_N;
  const bool wide = !helper && wide_last && tile == tiles_m - 1;
  const bool helped = wide && off > 0;
  const int count = helped ? blocks - off : blocks;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(r.full + 8 * s, 1);
      mbarrier_init(r.empty + 8 * s, share_a ? 16 : 8);
    }
    mbarrier_init_fence();
  }
  if (threadIdx.x == 256) {
    tma_prefetch_map(a_96);
    tma_prefetch_map(b);
    if (wide) {
      tma_prefetch_map(a_104);
      tma_prefetch_map(d_wide);
    } else {
      tma_prefetch_map(d_narrow);
    }
  }
  launch_dependents();
  if (helper && k > kWarm && threadIdx.x < 256) {
    const int i = rank * 256 + threadIdx.x;
    for (int line = i; line < m; line += 512) bulk_prefetch(a_rows + static_cast<long long>(line) * k, kWarm * 2);
    if (i < kWarm) bulk_prefetch(b_rows + static_cast<long long>(i) * n, n * 2u);
  }
  cluster_meet();
  wait_for_dependencies();

  if (helper) {
    if (!wide_last || off == 0) return;
    if (warpgroup == 2) {
      if (!elect_one()) return;
      for (int t = rank; t < tiles_n; t += 2) {
        for (int block = blocks - off; block < blocks; ++block) {
          const unsigned stage = r.ring + r.s * kStage, ready = r.full + 8 * r.s;
          const int x = block * BLOCK_K;
          mbarrier_wait(r.empty + 8 * r.s, r.parity ^ 1);
          mbarrier_arrive_expect(ready, kStage);
          tma_load(stage, b, ready, t * BLOCK_N, x);
          tma_load(stage + kBox, b, ready, t * BLOCK_N + 64, x);
          tma_load(stage + kBytesB, a_96, ready, x, row);
          tma_load(stage + kBytesB + kUpper * 128, a_104, ready, x, row + kUpper);
          r.next();
        }
      }
      return;
    }
    for (int t = rank; t < tiles_n; t += 2) {
      float sums[kWide / 2];
#pragma unroll
      for (int i = 0; i < kWide / 2; ++i) sums[i] = 0.0f;
      const unsigned before = multiply_blocks<kWide>(sums, r, off, warpgroup, lane == 0, rank);
      if (lane == 0) mbarrier_arrive(before);
      float4* to = reinterpret_cast<float4*>(parts) + static_cast<long long>(t) * kTileVectors + threadIdx.x % 128;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < part_vectors(part); ++j) {
          const float* v = sums + 4 * (10 * part + j);
          to[part_begin(part) + (warpgroup * part_vectors(part) + j) * 128] = make_float4(v[0], v[1], v[2], v[3]);
        }
      }
      __threadfence();
      named_barrier(1, 256);
      if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(flags + t, 1u);
      }
    }
    return;
  }

  if (warpgroup == 2) {
    if (!elect_one()) return;
    const unsigned bytes = (wide ? kWide : kNarrow) * 128 + kBytesB;
    const int entries = count + (helped ? kParts : 0);
    for (int entry = 0; entry < entries + kStages; ++entry) {
      const unsigned stage = r.ring + r.s * kStage, upper = stage + kBytesB, lower = upper + kUpper * 128, ready = r.full + 8 * r.s;
      const int x = entry * BLOCK_K;
      mbarrier_wait(r.empty + 8 * r.s, r.parity ^ 1);
      if (entry < count) {
        mbarrier_arrive_expect(ready, bytes);
        if (share_a) {
          if (rank == 0) tma_load_multicast(upper, a_96, ready, x, row, 3);
          else if (wide) tma_load_multicast(lower, a_104, ready, x, row + kUpper, 3);
          else tma_load_multicast(lower, a_96, ready, x, row + kUpper, 3);
        } else {
          tma_load(upper, a_96, ready, x, row);
          if (wide) tma_load(lower, a_104, ready, x, row + kUpper);
          else tma_load(lower, a_96, ready, x, row + kUpper);
        }
        tma_load(stage, b, ready, column, x);
        tma_load(stage + kBox, b, ready, column + 64, x);
      } else if (entry < entries) {  // the helper's sums; behind them the last round: the peer's arrivals must find this CTA alive
        const int part = entry - count;
        if (part == 0) {
          while (load_acquire(flags + tile_n) == 0) {
          }
          flags[tile_n] = 0;
          __threadfence();
          fence_proxy_async();
        }
        const unsigned size = part_vectors(part) * 4096;
        mbarrier_arrive_expect(ready, size);
        bulk_load(stage, reinterpret_cast<const float4*>(parts) + static_cast<long long>(tile_n) * kTileVectors + part_begin(part), size, ready);
      }
      r.next();
    }
    return;
  }

  const bool releases = lane < (share_a ? 2 : 1);
  const int releases_rank = share_a ? lane : rank;
  if (wide) consume<kWide>(d_wide, memory, r, warpgroup, lane, count, helped, releases, releases_rank, row, column, m, n);
  else consume<kNarrow>(d_narrow, memory, r, warpgroup, lane, count, false, releases, releases_rank, row, column, m, n);
}
