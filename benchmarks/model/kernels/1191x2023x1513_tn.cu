/* cudal2: {
 "arch": "sm_90a",
 "launches": [
  {"entry": "gemm", "grid": ["2*ceil(N/256)", "8*ceil(M/1216)", 1], "cluster": [2, 1, 1], "block": [288, 1, 1],
   "dynamic_smem": 228416, "programmatic": true, "args": [
   {"tensor_map": {"of": "A", "dims": ["K", "ceil(M/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128}},
   {"tensor_map": {"of": "A", "dims": ["K+K%8", "ceil((M-1)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*(K//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(2*K)%8", "ceil((M-2)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((2*K)//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(3*K)%8", "ceil((M-3)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((3*K)//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(4*K)%8", "ceil((M-4)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((4*K)//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(5*K)%8", "ceil((M-5)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((5*K)//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(6*K)%8", "ceil((M-6)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((6*K)//8)"}},
   {"tensor_map": {"of": "A", "dims": ["K+(7*K)%8", "ceil((M-7)/8)"], "strides": ["8*K"], "box": [64, 80], "swizzle": 128, "offset_bytes": "16*((7*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K", "ceil(N/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0}},
   {"tensor_map": {"of": "B", "dims": ["K+K%8", "ceil((N-1)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*(K//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(2*K)%8", "ceil((N-2)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((2*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(3*K)%8", "ceil((N-3)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((3*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(4*K)%8", "ceil((N-4)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((4*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(5*K)%8", "ceil((N-5)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((5*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(6*K)%8", "ceil((N-6)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((6*K)//8)"}},
   {"tensor_map": {"of": "B", "dims": ["K+(7*K)%8", "ceil((N-7)/8)"], "strides": ["8*K"], "box": [136, 16], "swizzle": 0, "offset_bytes": "16*((7*K)//8)"}},
   {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "f32",
 "requires": ["K>=8", "M>=8", "N>=8"]
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

constexpr int TILE_N = 128, BLOCK_K = 128, kStages = 3, kCluster = 2;
constexpr int kWarm = 528;                             // bytes of every row, prefetched by the CTAs that start early
constexpr int kLines = 152;                            // rows of A of one class in a tile
constexpr int kHalf = 80;                              // lines that one CTA of the cluster loads for both
constexpr unsigned kHalfA = kHalf * 128;
constexpr unsigned kBlockA = 2 * kHalfA;               // 64 of K
constexpr unsigned kBytesA = 2 * kBlockA;
constexpr unsigned kRowB = 272, kClassB = 16 * kRowB;  // 136 elements a row, 16 rows of a class
constexpr unsigned kStage = kBytesA + 8 * kClassB;     // 75776, a multiple of 1024
constexpr int kPitch = TILE_N / 2 + 1;                 // words of a row of the staging

// d(64 x 152) += a(64 x 16, registers) * b(16 x 152, K-major)
__device__ __forceinline__ void multiply(float (&d)[76], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %81, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n152k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "
      "%70, %71, %72, %73, %74, %75}, "
      "{%76, %77, %78, %79}, %80, p, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// A pair of elements that starts at the word, or one element behind its start.
__device__ __forceinline__ unsigned take(const unsigned* word, bool odd) {
  const unsigned low = word[0], high = odd ? word[1] : 0u;
  return __funnelshift_r(low, high, odd ? 16 : 0);
}

// Keeps the elements from `first` on, of a pair at `column`.
__device__ __forceinline__ unsigned mask_before(int column, int first) {
  return (column >= first ? 0x0000FFFFu : 0u) | (column + 1 >= first ? 0xFFFF0000u : 0u);
}

extern "C" __global__ void __launch_bounds__(288)
gemm(const __grid_constant__ TensorMap a0, const __grid_constant__ TensorMap a1, const __grid_constant__ TensorMap a2,
     const __grid_constant__ TensorMap a3, const __grid_constant__ TensorMap a4, const __grid_constant__ TensorMap a5,
     const __grid_constant__ TensorMap a6, const __grid_constant__ TensorMap a7, const __grid_constant__ TensorMap b0,
     const __grid_constant__ TensorMap b1, const __grid_constant__ TensorMap b2, const __grid_constant__ TensorMap b3,
     const __grid_constant__ TensorMap b4, const __grid_constant__ TensorMap b5, const __grid_constant__ TensorMap b6,
     const __grid_constant__ TensorMap b7, const __half* a, const __half* b, __half* d, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned base = smem_address(memory);
  const unsigned ring = align_up<1024>(base);
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.x * TILE_N;
  const int mine = blockIdx.y % 8;               // the class of A's rows
  const int line = blockIdx.y / 8 * kLines;      // rows mine + 8 * (line + ...)
  const int step = k % 8, shift = mine * step % 8;
  const int blocks = (k + shift + BLOCK_K - 1) / BLOCK_K;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8 * kCluster);
    }
    mbarrier_init_fence();
  }
  const TensorMap* left = mine < 4 ? (mine < 2 ? (mine == 0 ? &a0 : &a1) : (mine == 2 ? &a2 : &a3))
                                   : (mine < 6 ? (mine == 4 ? &a4 : &a5) : (mine == 6 ? &a6 : &a7));
  if (threadIdx.x == 256) {
    tma_prefetch_map(*left);
    tma_prefetch_map(b0);
    tma_prefetch_map(b1);
    tma_prefetch_map(b2);
    tma_prefetch_map(b3);
    tma_prefetch_map(b4);
    tma_prefetch_map(b5);
    tma_prefetch_map(b6);
    tma_prefetch_map(b7);
  }
  launch_dependents();
  if (blockIdx.y == 0 && blockIdx.x < 4 && threadIdx.x < 256 && k >= 512) {
    const int parts = gridDim.x < 4 ? gridDim.x : 4;
    for (int r = blockIdx.x * 256 + threadIdx.x; r < m + n; r += 256 * parts) {
      const long long first = static_cast<long long>(r < m ? r : r - m) * k / 8 * 8;  // at a multiple of 16 bytes
      bulk_prefetch((r < m ? a : b) + first, kWarm);
    }
  }
  cluster_meet();
  wait_for_dependencies();

  if (warpgroup == 2) {
    if (!elect_one()) return;
    const int rank = cluster_rank(), j = column / 8;
    const int o0 = 0 < shift ? -8 : 0, o1 = step < shift ? -8 : 0, o2 = 2 * step % 8 < shift ? -8 : 0, o3 = 3 * step % 8 < shift ? -8 : 0;
    const int o4 = 4 * step % 8 < shift ? -8 : 0, o5 = 5 * step % 8 < shift ? -8 : 0, o6 = 6 * step % 8 < shift ? -8 : 0, o7 = 7 * step % 8 < shift ? -8 : 0;
    int s = 0, parity = 1;
    for (int block = 0; block < blocks + kStages; ++block) {
      const int x = block * BLOCK_K;
      const unsigned stage = ring + s * kStage, right = stage + kBytesA, ready = full + 8 * s;
      mbarrier_wait(empty + 8 * s, parity);
      if (block < blocks) {  // in the last round the peer's arrivals must find this CTA alive
        mbarrier_arrive_expect(ready, kStage);
        tma_load_multicast(stage + rank * kHalfA, *left, ready, x, line + rank * kHalf, 3);
        tma_load_multicast(stage + kBlockA + rank * kHalfA, *left, ready, x + 64, line + rank * kHalf, 3);
        tma_load(right, b0, ready, x + o0, j);
        tma_load(right + kClassB, b1, ready, x + o1, j);
        tma_load(right + 2 * kClassB, b2, ready, x + o2, j);
        tma_load(right + 3 * kClassB, b3, ready, x + o3, j);
        tma_load(right + 4 * kClassB, b4, ready, x + o4, j);
        tma_load(right + 5 * kClassB, b5, ready, x + o5, j);
        tma_load(right + 6 * kClassB, b6, ready, x + o6, j);
        tma_load(right + 7 * kClassB, b7, ready, x + o7, j);
      }
      if (++s == kStages) {
        s = 0;
        parity ^= 1;
      }
    }
    return;
  }

  // Fragment rows g and g + 8 of a warp are columns 8 * (8 * warpgroup + g) + 2 * v and the next one.
  const int v = threadIdx.x % 128 / 32, g = lane / 4, q = lane % 4;
  const int class0 = 2 * v, class1 = 2 * v + 1;
  const int d0 = (class0 * step - shift) & 7, d1 = (class1 * step - shift) & 7;
  const bool odd0 = d0 & 1, odd1 = d1 & 1;
  unsigned char* tiles = memory + (ring - base);
  const unsigned char* from0 = tiles + kBytesA + class0 * kClassB + (8 * warpgroup + g) * kRowB + (q + d0 / 2) * 4;
  const unsigned char* from1 = tiles + kBytesA + class1 * kClassB + (8 * warpgroup + g) * kRowB + (q + d1 / 2) * 4;

  unsigned fragment[2][4][4];
  const auto fetch = [&](unsigned (&f)[4][4], int stage, int half) {
    const unsigned* p0 = reinterpret_cast<const unsigned*>(from0 + stage * kStage + half * 128);
    const unsigned* p1 = reinterpret_cast<const unsigned*>(from1 + stage * kStage + half * 128);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        f[t][2 * e] = take(p0 + 8 * t + 4 * e, odd0);
        f[t][2 * e + 1] = take(p1 + 8 * t + 4 * e, odd1);
      }
    }
  };

  float sums[76];
#pragma unroll
  for (int i = 0; i < 76; ++i) sums[i] = 0.0f;
  const unsigned long long lines = wgmma_descriptor<128>(ring, 0, 1024);

  mbarrier_wait(full, 0);
  fetch(fragment[0], 0, 0);
  // Before the first element of a row lies the end of another one: zero on both sides.
  fragment[0][0][0] &= mask_before(2 * q, shift);
  fragment[0][0][1] &= mask_before(2 * q, shift);
  if (shift > 0) {
    if (threadIdx.x < kLines) {
      const int r = threadIdx.x;
      uint4* chunk = reinterpret_cast<uint4*>(tiles + r * 128 + (r % 8 << 4));
      uint4 value = *chunk;
      value.x &= mask_before(0, shift);
      value.y &= mask_before(2, shift);
      value.z &= mask_before(4, shift);
      value.w &= mask_before(6, shift);
      *chunk = value;
    }
    fence_proxy_async();
    named_barrier(1, 256);
  }

  int s = 0, parity = 0;
  unsigned before = empty;
  for (int block = 0; block < blocks; ++block) {
    const unsigned long long tile = wgmma_advance(lines, s * kStage);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; ++t) multiply(sums, fragment[0][t], wgmma_advance(tile, t * 32));
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && lane < kCluster) mbarrier_arrive_remote(before, lane);  // the stage before has been read
    fetch(fragment[1], s, 1);

    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; ++t) multiply(sums, fragment[1][t], wgmma_advance(tile, kBlockA + t * 32));
    wgmma_commit();
    wgmma_wait<1>();
    before = empty + 8 * s;
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
    if (block + 1 < blocks) {
      mbarrier_wait(full + 8 * s, parity);
      fetch(fragment[0], s, 0);
    }
  }
  wgmma_pin(sums);
  wgmma_wait<0>();
  wgmma_pin(sums);
  if (lane < kCluster) mbarrier_arrive_remote(before, lane);
  named_barrier(2, 256);  // all stages have been read, and nothing more arrives in this CTA's ring: staging lies over it

  unsigned* staging = reinterpret_cast<unsigned*>(tiles);
  unsigned* to = staging + 2 * q * kPitch + 4 * (8 * warpgroup + g) + v;
#pragma unroll
  for (int j = 0; j < kLines / 8; ++j) {
    to[8 * j * kPitch] = pack<__half>(sums[4 * j], sums[4 * j + 2]);
    to[(8 * j + 1) * kPitch] = pack<__half>(sums[4 * j + 1], sums[4 * j + 3]);
  }
  named_barrier(3, 256);

  const int warp = threadIdx.x / 32;
  const int width = n - column < TILE_N ? n - column : TILE_N;
  unsigned short* out = reinterpret_cast<unsigned short*>(d);
#pragma unroll 4
  for (int i = 0; i < kLines / 8; ++i) {
    const int at = 8 * i + warp, row = mine + 8 * (line + at);
    if (row < m) {
      const long long e = static_cast<long long>(row) * n + column;
      const int odd = static_cast<int>(e & 1);
      const unsigned* from = staging + at * kPitch;
      unsigned short* target = out + (e - odd);
#pragma unroll
      for (int w = 0; w < TILE_N / 64; ++w) {
        const int word = lane + 32 * w, c = 2 * word - odd;  // columns c and c + 1 of the tile
        const unsigned here = from[word];
        const unsigned previous = odd && word > 0 ? from[word - 1] : 0u;
        const unsigned value = odd ? __byte_perm(previous, here, 0x5432) : here;
        const bool low = c >= 0 && c < width, high = c + 1 < width;
        if (low && high) *reinterpret_cast<unsigned*>(target + 2 * word) = value;
        else if (low) target[2 * word] = static_cast<unsigned short>(value & 0xFFFFu);
        else if (high) target[2 * word + 1] = static_cast<unsigned short>(value >> 16);
      }
      if (odd && lane == 31 && TILE_N - 1 < width) target[TILE_N] = static_cast<unsigned short>(from[TILE_N / 2 - 1] >> 16);
    }
  }
}
