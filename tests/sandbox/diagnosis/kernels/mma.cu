// D = A B with mma.sync over tiles in shared memory. Macros set the faults of tests/sandbox/diagnosis/faulty_kernels.py:
//   STAGES         shared-memory buffers; with 1, copies and products alternate
//   SWIZZLE        0: plain rows, so that ldmatrix has bank conflicts
//   BY_REGISTERS   1: operands are copied to shared memory through registers instead of cp.async
//   COALESCED      0: with BY_REGISTERS, a warp loads B down a column, four bytes per row
//   LDMATRIX       0: fragments are loaded word by word
//   MIN_CTAS       minimum resident CTAs per SM, which limits registers
//   SPLITS         parts of K, whose sums a second launch adds up from the workspace
// and the geometry: BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N. M, N, K are whole multiples of the tile.
#include <cudal2/convert.cuh>
#include <cudal2/cp_async.cuh>
#include <cudal2/ldmatrix.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/swizzle.cuh>

using namespace cudal2;

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
constexpr int kMmasM = WARP_M / 16, kMmasN = WARP_N / 8;
constexpr int kBytesA = BLOCK_M * BLOCK_K * 2, kBytesStage = kBytesA + BLOCK_K * BLOCK_N * 2;

static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's tile is made of 16x8 products, loaded in pairs along N");
static_assert(!BY_REGISTERS || STAGES == 1, "only asynchronous copies can run ahead");
static_assert(COALESCED || BY_REGISTERS, "the column-wise copy goes through registers");

// Byte offset of (row, column) in a tile of kColumns columns.
template <int kColumns>
__device__ __forceinline__ unsigned offset(int row, int column) {
  return SWIZZLE ? swizzled<kColumns>(row, column) : static_cast<unsigned>((row * kColumns + column) * 2);
}

// Copies a tile, 16 bytes per thread and step; neighbouring threads along rows.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_rows(unsigned char* tile, const half* __restrict__ source, int pitch) {
  constexpr int kAcross = kColumns / 8;
  for (int chunk = threadIdx.x; chunk < kRows * kAcross; chunk += kThreads) {
    const int row = chunk / kAcross, column = chunk % kAcross * 8;
    const half* from = source + size_t(row) * pitch + column;
    unsigned char* to = tile + offset<kColumns>(row, column);
    if constexpr (BY_REGISTERS) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      cp_async<16>(smem_address(to), from);
    }
  }
}

// Copies the same tile, 4 bytes per thread and step; neighbouring threads down columns.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_columns(unsigned char* tile, const half* __restrict__ source, int pitch) {
  for (int pair = threadIdx.x; pair < kRows * kColumns / 2; pair += kThreads) {
    const int row = pair % kRows, column = pair / kRows * 2;
    const half* from = source + size_t(row) * pitch + column;
    *reinterpret_cast<unsigned*>(tile + offset<kColumns>(row, column)) = *reinterpret_cast<const unsigned*>(from);
  }
}

__device__ __forceinline__ void load_block(unsigned char* stage, const half* a, const half* b, int n, int k, int block) {
  load_rows<BLOCK_M, BLOCK_K>(stage, a + size_t(block) * BLOCK_K, k);
  const half* block_b = b + size_t(block) * BLOCK_K * n;
  if constexpr (COALESCED) {
    load_rows<BLOCK_K, BLOCK_N>(stage + kBytesA, block_b, n);
  } else {
    load_columns<BLOCK_K, BLOCK_N>(stage + kBytesA, block_b, n);
  }
}

struct Fragments {
  unsigned a[kMmasM][4];
  unsigned b[kMmasN][2];
};

__device__ __forceinline__ void load_by_ldmatrix(Fragments& f, const unsigned char* stage, int row, int column, int k) {
  const int lane = threadIdx.x % 32;
  const unsigned smem_a = smem_address(stage), smem_b = smem_a + kBytesA;
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
    const unsigned at = smem_a + offset<BLOCK_K>(row + 16 * i + lane % 16, k + lane / 16 * 8);
    ldmatrix_x4(at, f.a[i][0], f.a[i][1], f.a[i][2], f.a[i][3]);
  }
#pragma unroll
  for (int j = 0; j < kMmasN; j += 2) {
    const unsigned at = smem_b + offset<BLOCK_N>(k + lane % 16, column + 8 * j + lane / 16 * 8);
    ldmatrix_x4_trans(at, f.b[j][0], f.b[j][1], f.b[j + 1][0], f.b[j + 1][1]);
  }
}

// Lane l holds rows l/4 and l/4+8 of A and column l/4 of B, at K indices 2*(l%4) and the next one, and 8 beyond both.
__device__ __forceinline__ void load_word_by_word(Fragments& f, const unsigned char* stage, int row, int column, int k) {
  const int lane = threadIdx.x % 32;
  const unsigned char* stage_b = stage + kBytesA;
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int at_row = row + 16 * i + lane / 4 + r % 2 * 8, at_k = k + lane % 4 * 2 + r / 2 * 8;
      f.a[i][r] = *reinterpret_cast<const unsigned*>(stage + offset<BLOCK_K>(at_row, at_k));
    }
  }
#pragma unroll
  for (int j = 0; j < kMmasN; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at_k = k + lane % 4 * 2 + r * 8, at_column = column + 8 * j + lane / 4;
      const unsigned low = *reinterpret_cast<const unsigned short*>(stage_b + offset<BLOCK_N>(at_k, at_column));
      const unsigned high = *reinterpret_cast<const unsigned short*>(stage_b + offset<BLOCK_N>(at_k + 1, at_column));
      f.b[j][r] = low | high << 16;
    }
  }
}

using Accumulators = float[kMmasM][kMmasN][4];

__device__ __forceinline__ void multiply(Accumulators& sums, const unsigned char* stage, int row, int column) {
#pragma unroll
  for (int k = 0; k < BLOCK_K; k += 16) {
    Fragments f;
    if constexpr (LDMATRIX) {
      load_by_ldmatrix(f, stage, row, column, k);
    } else {
      load_word_by_word(f, stage, row, column, k);
    }
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
      for (int j = 0; j < kMmasN; ++j) mma_m16n8k16<half>::run(sums[i][j], f.a[i], f.b[j]);
    }
  }
}

__device__ __forceinline__ void multiply_in_turns(Accumulators& sums, unsigned char* memory, const half* a, const half* b, int n,
                                                  int k, int begin, int end, int row, int column) {
  for (int block = begin; block < end; ++block) {
    load_block(memory, a, b, n, k, block);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    multiply(sums, memory, row, column);
    __syncthreads();  // the next copy overwrites a buffer that other warps may still read
  }
}

__device__ __forceinline__ void multiply_pipelined(Accumulators& sums, unsigned char* memory, const half* a, const half* b, int n,
                                                   int k, int begin, int end, int row, int column) {
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (begin + ahead < end) load_block(memory + ahead * kBytesStage, a, b, n, k, begin + ahead);
    cp_async_commit();  // also commits empty groups, so that the number of groups equals the number of blocks
  }
  for (int block = begin; block < end; ++block) {
    cp_async_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
    __syncthreads();  // the block is visible to all threads, and no thread reads the previous one, whose buffer is filled next
    const int ahead = block + STAGES - 1;
    if (ahead < end) load_block(memory + (ahead - begin) % STAGES * kBytesStage, a, b, n, k, ahead);
    cp_async_commit();
    multiply(sums, memory + (block - begin) % STAGES * kBytesStage, row, column);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
hgemm(const half* __restrict__ a, const half* __restrict__ b, half* __restrict__ d, float* __restrict__ partials, int m, int n,
      int k) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / WARPS_N * WARP_M, column = warp % WARPS_N * WARP_N;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  const int blocks = k / BLOCK_K / SPLITS, begin = blockIdx.z * blocks;
  const half* tile_a = a + size_t(m0) * k;
  const half* tile_b = b + n0;

  Accumulators sums = {};
  if constexpr (STAGES == 1) {
    multiply_in_turns(sums, memory, tile_a, tile_b, n, k, begin, begin + blocks, row, column);
  } else {
    multiply_pipelined(sums, memory, tile_a, tile_b, n, k, begin, begin + blocks, row, column);
  }

#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const size_t at_row = m0 + row + 16 * i + 8 * half_tile + lane / 4;
#pragma unroll
      for (int j = 0; j < kMmasN; ++j) {
        const size_t at = at_row * n + n0 + column + 8 * j + lane % 4 * 2;
        const float low = sums[i][j][2 * half_tile], high = sums[i][j][2 * half_tile + 1];
        if constexpr (SPLITS == 1) {
          *reinterpret_cast<unsigned*>(d + at) = pack<half>(low, high);
        } else {
          *reinterpret_cast<float2*>(partials + size_t(blockIdx.z) * m * n + at) = make_float2(low, high);
        }
      }
    }
  }
}

#if SPLITS > 1
// Sums the parts in order, two neighbouring outputs per thread.
extern "C" __global__ void __launch_bounds__(256) reduce(const float* __restrict__ partials, half* __restrict__ d, int m, int n) {
  const size_t at = (size_t(blockIdx.x) * 256 + threadIdx.x) * 2;
  float2 sum = make_float2(0.0f, 0.0f);
  for (int split = 0; split < SPLITS; ++split) {
    const float2 part = *reinterpret_cast<const float2*>(partials + size_t(split) * m * n + at);
    sum.x += part.x;
    sum.y += part.y;
  }
  *reinterpret_cast<unsigned*>(d + at) = pack<half>(sum.x, sum.y);
}
#endif
