//@section row-major-a
// D = A B: A row-major M x K, B row-major K x N (kRowMajorB) or column-major, D row-major M x N.
//@section column-major-a
// D = A B: A column-major (K x M in memory), B row-major K x N, D row-major M x N.
//@end
// cp.async keeps a ring of swizzled shared-memory stages full. Warps load fragments from a stage with ldmatrix, and multiply
// them with mma.sync into accumulators in registers. K may be divided between the warps of a CTA (slices) and between CTAs
// (splits); partial sums are added in a fixed order. Tiles may reach past every edge of the matrices.
//@section bias
// The sums of the first part of K begin with the bias, of which each column of D has an element.
//@section activation
// An activation of the complete sums is what is rounded to D.
#include <cudal2/activation.cuh>
//@end
#include <cudal2/arrival.cuh>
//@section bias
#include <cudal2/bias.cuh>
//@end
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/cp_async.cuh>
#include <cudal2/ldmatrix.cuh>
#include <cudal2/mma.cuh>
#include <cudal2/opaque.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/raster.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/swizzle.cuh>

using namespace cudal2;

//@constants

// ---- what follows from the constants --------------------------------------------------------------------------------------
constexpr int kThreads = 32 * kWarpsM * kWarpsN * kWarpsK;
constexpr int WARP_M = BLOCK_M / kWarpsM, WARP_N = BLOCK_N / kWarpsN;
constexpr int kMmasM = WARP_M / 16, kMmasN = WARP_N / 8;
constexpr int kStepsK = BLOCK_K / 16 / kWarpsK;  // mma steps of a warp in one K block
constexpr int kRowsB = kRowMajorB ? BLOCK_K : BLOCK_N;  // of a tile of B, as it lies in memory
constexpr int kColumnsB = kRowMajorB ? BLOCK_N : BLOCK_K;
constexpr unsigned kBytesA = BLOCK_M * BLOCK_K * sizeof(Element);
//@section pipeline
constexpr unsigned kBytesStage = kBytesA + BLOCK_N * BLOCK_K * sizeof(Element);
//@end

static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's tile is made of 16x8 products, loaded in pairs along N");
static_assert(BLOCK_K % (16 * kWarpsK) == 0, "every warp along K gets whole steps of 16");
static_assert(kThreads <= 1024, "a CTA has at most 1024 threads");

// Accumulators of a warp, as mma.cuh lays them out.
using Accumulators = Register[kMmasM][kMmasN][kRegisters];
using Sums = float[kMmasM][kMmasN][4];

struct Place {  // where a warp works: its tile of the CTA's tile, and its slice of every K block
  int lane, row, column, slice;
};

// ---- from global to shared memory -----------------------------------------------------------------------------------------
//@section vectors-a vectors-b
// Copies the kRows x kColumns tile at (row0, column0) of a row-major matrix into swizzled shared memory, kVector elements per
// copy. With kGuarded, elements outside the matrix become zero; kVector divides `columns`, so no copy straddles the edge.
template <int kRows, int kColumns, int kVector, bool kGuarded>
__device__ __forceinline__ void load_tile(unsigned smem, const Element* __restrict__ matrix, int row0, int column0, int rows,
                                          int columns) {
  constexpr int kRowCopies = kColumns / kVector;
  constexpr int kAcross = kRowCopies < kThreads ? kRowCopies : kThreads;  // threads side by side along a row
  constexpr int kDown = kThreads / kAcross;  // rows that the CTA copies at a time
  const int row = threadIdx.x / kAcross, column = threadIdx.x % kAcross * kVector;
  if (kThreads % kAcross != 0 && row >= kDown) return;
  const Element* source = matrix + static_cast<long long>(row0 + row) * columns + column0 + column;
  hide(source);  // otherwise the compiler keeps the address of every copy in registers through the whole K loop
#pragma unroll 8
  for (int r = 0; r < kRows; r += kDown) {
    if (kRows % kDown != 0 && row + r >= kRows) break;
#pragma unroll
    for (int c = 0; c < kColumns; c += kAcross * kVector) {
      if (kColumns % (kAcross * kVector) != 0 && column + c >= kColumns) break;
      const unsigned target = smem + swizzled<kColumns>(row + r, column + c);
      const Element* from = source + static_cast<long long>(r) * columns + c;
      if constexpr (kGuarded) {
        const bool inside = row0 + row + r < rows && column0 + column + c < columns;
        cp_async_or_zero<kVector * sizeof(Element)>(target, from, inside);
      } else {
        cp_async<kVector * sizeof(Element)>(target, from);
      }
    }
  }
}

//@section elements-a elements-b
// As load_tile for rows of an odd number of elements, which cp.async cannot copy: plain loads of one element each.
template <int kRows, int kColumns>
__device__ __forceinline__ void load_tile_odd(unsigned smem, const Element* __restrict__ matrix, int row0, int column0,
                                              int rows, int columns) {
  constexpr int kElements = kRows * kColumns;
  constexpr int kBatch = 8;  // loads of a thread in flight before the first store waits for one
#pragma unroll 1
  for (int first = threadIdx.x; first < kElements; first += kBatch * kThreads) {
    Element values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = (first + i * kThreads) / kColumns, column = (first + i * kThreads) % kColumns;
      const bool inside = row < kRows && row0 + row < rows && column0 + column < columns;
      values[i] = inside ? matrix[(row0 + row) * columns + column0 + column] : round_to<Element>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = (first + i * kThreads) / kColumns, column = (first + i * kThreads) % kColumns;
      if (row >= kRows) break;
      *static_cast<Element*>(__cvta_shared_to_generic(smem + swizzled<kColumns>(row, column))) = values[i];
    }
  }
}

//@end
// Loads the K block that starts at `k` into the stage at `smem`: the tile of A, then the tile of B.
__device__ __forceinline__ void load_block(unsigned smem, const Element* __restrict__ a, const Element* __restrict__ b, int m0,
                                           int n0, int k, int M, int N, int K) {
//@section vectors-row-major-a
  load_tile<BLOCK_M, BLOCK_K, kVectorA, kGuardA>(smem, a, m0, k, M, K);
//@section elements-row-major-a
  load_tile_odd<BLOCK_M, BLOCK_K>(smem, a, m0, k, M, K);
//@section vectors-column-major-a
  load_tile<BLOCK_K, BLOCK_M, kVectorA, kGuardA>(smem, a, k, m0, K, M);
//@section elements-column-major-a
  load_tile_odd<BLOCK_K, BLOCK_M>(smem, a, k, m0, K, M);
//@end
  const int row_b = kRowMajorB ? k : n0, column_b = kRowMajorB ? n0 : k;
  const int rows_b = kRowMajorB ? K : N, columns_b = kRowMajorB ? N : K;
//@section vectors-b
  load_tile<kRowsB, kColumnsB, kVectorB, kGuardB>(smem + kBytesA, b, row_b, column_b, rows_b, columns_b);
//@section elements-b
  load_tile_odd<kRowsB, kColumnsB>(smem + kBytesA, b, row_b, column_b, rows_b, columns_b);
//@end
}

// ---- from shared memory to accumulators -----------------------------------------------------------------------------------
struct Fragments {
  unsigned a[kMmasM][4];
  unsigned b[kMmasN][2];
};

// Loads a warp's operands of one step of 16 along K, starting at `k` of the K block in shared memory.
__device__ __forceinline__ void load_fragments(Fragments& fragments, unsigned smem_a, unsigned smem_b, const Place& place,
                                               int k) {
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
    unsigned(&a)[4] = fragments.a[i];
//@section row-major-a
    const int row = place.row + 16 * i + place.lane % 16;
    ldmatrix_x4(smem_a + swizzled<BLOCK_K>(row, k + place.lane / 16 * 8), a[0], a[1], a[2], a[3]);
//@section column-major-a
    // Rows in shared memory run along M, so ldmatrix transposes the 8x8 tiles: two along M, then two further along K.
    const int row = place.row + 16 * i + place.lane / 8 % 2 * 8;
    ldmatrix_x4_trans(smem_a + swizzled<BLOCK_M>(k + place.lane / 16 * 8 + place.lane % 8, row), a[0], a[1], a[2], a[3]);
//@end
  }
#pragma unroll
  for (int j = 0; j < kMmasN; j += 2) {
    unsigned(&left)[2] = fragments.b[j];
    unsigned(&right)[2] = fragments.b[j + 1];
    if constexpr (kRowMajorB) {  // rows in shared memory run along N, so ldmatrix transposes the 8x8 tiles
      const int column = place.column + 8 * j + place.lane / 16 * 8;
      ldmatrix_x4_trans(smem_b + swizzled<BLOCK_N>(k + place.lane % 16, column), left[0], left[1], right[0], right[1]);
    } else {
      const int row = place.column + 8 * j + place.lane / 16 * 8 + place.lane % 8;
      ldmatrix_x4(smem_b + swizzled<BLOCK_K>(row, k + place.lane / 8 % 2 * 8), left[0], left[1], right[0], right[1]);
    }
  }
}

__device__ __forceinline__ void multiply_step(Accumulators& accumulators, const Fragments& fragments) {
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmasN; ++j) mma_m16n8k16<Element>::run(accumulators[i][j], fragments.a[i], fragments.b[j]);
  }
}

// Multiplies the CTA's K blocks. The fragments of the next step are loaded while those of this step are multiplied.
__device__ __forceinline__ void multiply(Accumulators& accumulators, unsigned smem, const Place& place,
                                         const Element* __restrict__ a, const Element* __restrict__ b, int m0, int n0,
                                         int k_begin, int k_blocks, int M, int N, int K) {
//@section one-stage
  // The K range of the CTA is one block: it is loaded once, and there is no loop.
  load_block(smem, a, b, m0, n0, k_begin, M, N, K);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  Fragments fragments[2];
  const int k_slice = place.slice * kStepsK * 16;
  load_fragments(fragments[0], smem, smem + kBytesA, place, k_slice);
#pragma unroll
  for (int step = 0; step < kStepsK; ++step) {
    if (step + 1 < kStepsK) {
      load_fragments(fragments[(step + 1) % 2], smem, smem + kBytesA, place, k_slice + (step + 1) * 16);
    }
    multiply_step(accumulators, fragments[step % 2]);
  }
//@section pipeline
  // K blocks travel through a ring of kStages buffers. While block i is multiplied, the copies of blocks up to
  // i + kStages - 1 are in flight.
#pragma unroll
  for (int block = 0; block < kStages - 1; ++block) {
    if (block < k_blocks) load_block(smem + block * kBytesStage, a, b, m0, n0, k_begin + block * BLOCK_K, M, N, K);
    cp_async_commit();  // empty groups too, so that counting groups counts blocks
  }
  cp_async_wait<kStages - 2>();
  __syncthreads();

  Fragments fragments[2];
  const int k_slice = place.slice * kStepsK * 16;
  unsigned reading = smem;
  unsigned writing = smem + (kStages - 1) * kBytesStage;
  const unsigned end = smem + kStages * kBytesStage;
  load_fragments(fragments[0], reading, reading + kBytesA, place, k_slice);

  constexpr bool kOddSteps = kStepsK % 2 == 1;
#pragma unroll kOddSteps ? 2 : 1
  for (int block = 0; block < k_blocks; ++block) {
#pragma unroll
    for (int step = 0; step < kStepsK; ++step) {
      if (step == 0) {
        // The buffer being filled held block - 1, which every warp left before the last barrier.
        const int ahead = block + kStages - 1;
        if (ahead < k_blocks) load_block(writing, a, b, m0, n0, k_begin + ahead * BLOCK_K, M, N, K);
        cp_async_commit();
        writing = writing + kBytesStage == end ? smem : writing + kBytesStage;
      }
      if (step == kStepsK - 1) {
        cp_async_wait<kStages - 2>();
        __syncthreads();
        reading = reading + kBytesStage == end ? smem : reading + kBytesStage;
      }
      // After the very last step this reads a buffer that is no longer written; its values are never used.
      const int next = (step + 1) % kStepsK;
      load_fragments(fragments[(step + 1) % 2], reading, reading + kBytesA, place, k_slice + next * 16);
      multiply_step(accumulators, fragments[step % 2]);
    }
    if constexpr (kOddSteps) fragments[0] = fragments[1];  // the unrolled loop renames registers instead of copying
  }
//@end
}

//@section bias
__device__ __forceinline__ void begin_sums(Accumulators& sums, const Place& place, const Element* bias, int n0, int N) {
#pragma unroll
  for (int j = 0; j < kMmasN; ++j) {
    const float2 pair = bias_of_pair(bias, n0 + place.column + 8 * j + place.lane % 4 * 2, N);
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
      sums[i][j][0] = sums[i][j][2] = pair.x;
      sums[i][j][1] = sums[i][j][3] = pair.y;
    }
  }
}

//@end
// ---- from accumulators to the sums of the tile ----------------------------------------------------------------------------
//@section packed
__device__ __forceinline__ void widen(Sums& sums, const Accumulators& accumulators) {
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmasN; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = unpack_halves(accumulators[i][j][half]);
        sums[i][j][2 * half] = pair.x;
        sums[i][j][2 * half + 1] = pair.y;
      }
    }
  }
}

//@section slices workspace
// Partial sums travel as mma fragments: one float4 per thread and product, neighbours side by side.
constexpr int kTileThreads = 32 * kWarpsM * kWarpsN;
constexpr int kFragments = kMmasM * kMmasN;

__device__ __forceinline__ float4 fragment(const Sums& sums, int f) {
  const float(&s)[4] = sums[f / kMmasN][f % kMmasN];
  return make_float4(s[0], s[1], s[2], s[3]);
}

__device__ __forceinline__ void add_fragment(Sums& sums, int f, float4 part) {
  float(&s)[4] = sums[f / kMmasN][f % kMmasN];
  s[0] += part.x;
  s[1] += part.y;
  s[2] += part.z;
  s[3] += part.w;
}

//@section slices
// Adds the sums of the warps that share a tile, in the order of their slices, to those of slice 0.
__device__ __forceinline__ void sum_slices(Sums& sums, unsigned char* memory, const Place& place) {
  float4* exchange = reinterpret_cast<float4*>(memory) + threadIdx.x % kTileThreads;
  __syncthreads();  // the exchange lies over operands that other warps may still be reading
  if (place.slice > 0) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      exchange[((place.slice - 1) * kFragments + f) * kTileThreads] = fragment(sums, f);
    }
  }
  __syncthreads();
  if (place.slice > 0) return;
#pragma unroll
  for (int slice = 1; slice < kWarpsK; ++slice) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) add_fragment(sums, f, exchange[((slice - 1) * kFragments + f) * kTileThreads]);
  }
}

//@section sum-last
__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    float(&s)[4] = sums[f / kMmasN][f % kMmasN];
    s[0] = s[1] = s[2] = s[3] = 0.0f;
  }
}

// Writes this CTA's sums to its slot of the workspace. The last CTA of a tile to arrive adds all slots in the order of the
// splits, so that the result does not depend on which CTA was last; for the others the function returns false.
__device__ __forceinline__ bool sum_splits(Sums& sums, float4* __restrict__ partials, unsigned* __restrict__ counters,
                                           const Place& place, int tile, int split) {
  constexpr int kSlot = kFragments * kTileThreads;
  constexpr int kUnroll = kFragments >= 16 ? 1 : 16 / kFragments;  // enough loads in flight to hide the latency of L2
  float4* slots = partials + tile * (kSplits * kSlot) + threadIdx.x % kTileThreads;
  if (place.slice == 0) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) __stcg(slots + split * kSlot + f * kTileThreads, fragment(sums, f));
  }
  if (!arrives_last(counters + tile, kSplits)) return false;
  if (place.slice > 0) return true;
  clear(sums);
#pragma unroll kUnroll
  for (int slot = 0; slot < kSplits; ++slot) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) add_fragment(sums, f, __ldcg(slots + slot * kSlot + f * kTileThreads));
  }
  return true;
}

//@section sum-spread
// A unit is what a warp holds of one product, 8 columns of 16 rows. The CTAs of a tile divide its units.
constexpr int kTileWarps = kWarpsM * kWarpsN;
constexpr int kUnits = kFragments * kTileWarps;
constexpr int kSlot = kUnits * 32;

// Writes this CTA's sums to its slot of the workspace. Behind it those of all splits can be read.
__device__ __forceinline__ void share_sums(const Sums& sums, float4* __restrict__ slots, unsigned* __restrict__ counter,
                                           const Place& place, int split) {
  if (kWarpsK == 1 || place.slice == 0) {
    float4* mine = slots + split * kSlot + threadIdx.x % kTileThreads;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) __stcg(mine + f * kTileThreads, fragment(sums, f));
  }
  meet_resident(counter, kSplits);
}

// Volatile, so that the compiler does not read before the CTAs have met.
__device__ __forceinline__ float4 load_from_l2(const float4* pointer) {
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(pointer)
               : "memory");
  return value;
}

// What this lane holds of a unit, summed in the order of the splits.
__device__ __forceinline__ float4 sum_of_unit(const float4* slots, int unit) {
  float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int split = 0; split < kSplits; ++split) {
    const float4 part = load_from_l2(slots + split * kSlot + unit * 32 + threadIdx.x % 32);
    total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
  }
  return total;
}

//@end
// ---- from the sums to D ---------------------------------------------------------------------------------------------------
//@section activation-direct activation-staged
__device__ __forceinline__ void activate(Sums& sums, const Place& place) {
  if (kWarpsK > 1 && place.slice > 0) return;
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmasN; ++j) {
#pragma unroll
      for (float& sum : sums[i][j]) sum = Activation::of(sum);
    }
  }
}

//@section direct
// Rounds a warp's sums and stores them straight from registers. Its rows are guarded outside the loop over columns.
__device__ __forceinline__ void store_tile(Element* __restrict__ d, const Sums& sums, const Place& place, int m0, int n0, int M,
                                           int N) {
  if (kWarpsK > 1 && place.slice > 0) return;
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m0 + place.row + 16 * i + 8 * half + place.lane / 4;
      if (kGuardD && row >= M) continue;
#pragma unroll
      for (int j = 0; j < kMmasN; ++j) {
        const int column = n0 + place.column + 8 * j + place.lane % 4 * 2;
        const float low = sums[i][j][2 * half], high = sums[i][j][2 * half + 1];
        if constexpr (kAlignD >= 2) {
          if (!kGuardD || column < N) *reinterpret_cast<unsigned*>(d + row * N + column) = pack<Element>(low, high);
        } else {
          if (column < N) d[row * N + column] = round_to<Element>(low);
          if (column + 1 < N) d[row * N + column + 1] = round_to<Element>(high);
        }
      }
    }
  }
}

//@section sum-spread
__device__ __forceinline__ void store_pair(Element* __restrict__ d, int row, int column, float low, float high, int M, int N) {
  if (kGuardD && row >= M) return;
  if constexpr (kAlignD >= 2) {
    if (!kGuardD || column < N) *reinterpret_cast<unsigned*>(d + row * N + column) = pack<Element>(low, high);
  } else {
    if (column < N) d[row * N + column] = round_to<Element>(low);
    if (column + 1 < N) d[row * N + column + 1] = round_to<Element>(high);
  }
}

// Stores what this lane holds of a unit straight from registers.
__device__ __forceinline__ void store_unit(Element* __restrict__ d, float4 sum, int unit, int m0, int n0, int M, int N) {
//@section activation-sum-spread
  sum = activated<Activation>(sum);
//@section sum-spread
  const int f = unit / kTileWarps, warp = unit % kTileWarps, lane = threadIdx.x % 32;
  const int row = m0 + warp / kWarpsN * WARP_M + f / kMmasN * 16 + lane / 4;
  const int column = n0 + warp % kWarpsN * WARP_N + f % kMmasN * 8 + lane % 4 * 2;
  store_pair(d, row, column, sum.x, sum.y, M, N);
  store_pair(d, row + 8, column, sum.z, sum.w, M, N);
}

// Adds this CTA's share of the units and stores them. In a turn every warp of every CTA of the tile has one.
__device__ __forceinline__ void store_share(Element* __restrict__ d, const float4* slots, int split, int m0, int n0, int M,
                                            int N) {
  constexpr int kTurn = kSplits * (kThreads / 32);
  constexpr int kTurns = (kUnits + kTurn - 1) / kTurn;
  constexpr int kFetched = kSplits >= 16 ? 1 : 16 / kSplits;
  constexpr int kTogether = kTurns < kFetched ? kTurns : kFetched;  // units whose loads are in flight together
  const int mine = threadIdx.x / 32 * kSplits + split;
#pragma unroll 1
  for (int begin = mine; begin < kUnits; begin += kTogether * kTurn) {
    float4 sums[kTogether];
#pragma unroll
    for (int index = 0; index < kTogether; ++index) sums[index] = sum_of_unit(slots, min(begin + index * kTurn, kUnits - 1));
#pragma unroll
    for (int index = 0; index < kTogether; ++index) {
      const int unit = begin + index * kTurn;
      if (unit < kUnits) store_unit(d, sums[index], unit, m0, n0, M, N);
    }
  }
}

//@section staged cluster
// Calls store(row, column, low, high) for every two neighbours in a row of the tile whose sums this lane holds. With slices,
// only the warps of slice 0 hold sums.
template <typename Store>
__device__ __forceinline__ void for_each_pair(const Sums& sums, const Place& place, const Store& store) {
  if (kWarpsK > 1 && place.slice > 0) return;
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row + 16 * i + 8 * half + place.lane / 4;
#pragma unroll
      for (int j = 0; j < kMmasN; ++j) {
        store(row, place.column + 8 * j + place.lane % 4 * 2, sums[i][j][2 * half], sums[i][j][2 * half + 1]);
      }
    }
  }
}

//@section staged
// Rounds the sums into shared memory, then stores whole 16-byte chunks along the rows of D.
__device__ __forceinline__ void store_tile(Element* __restrict__ d, const Sums& sums, unsigned char* memory, const Place& place,
                                           int m0, int n0, int M, int N) {
  __syncthreads();  // the staged tile lies over operands that other warps may still be reading
  for_each_pair(sums, place, [&](int row, int column, float low, float high) {
    *reinterpret_cast<unsigned*>(memory + swizzled<BLOCK_N>(row, column)) = pack<Element>(low, high);
  });
  __syncthreads();
  constexpr int kRowChunks = BLOCK_N / 8;
#pragma unroll
  for (int first = 0; first < BLOCK_M * kRowChunks; first += kThreads) {
    const int chunk = first + threadIdx.x;
    if (BLOCK_M * kRowChunks % kThreads != 0 && chunk >= BLOCK_M * kRowChunks) break;
    const int row = chunk / kRowChunks, column = chunk % kRowChunks * 8;
    if (kGuardD && (m0 + row >= M || n0 + column >= N)) continue;
    *reinterpret_cast<uint4*>(d + (m0 + row) * N + n0 + column) =
        *reinterpret_cast<const uint4*>(memory + swizzled<BLOCK_N>(row, column));
  }
}

//@section cluster
__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// Adds the tiles of the cluster's CTAs in the order of the splits, each CTA its share of the rows, and stores D.
__device__ __forceinline__ void store_cluster_sum(Element* __restrict__ d, const Sums& sums, unsigned char* memory,
                                                  const Place& place, int m0, int n0, int M, int N) {
  float* staged = reinterpret_cast<float*>(memory);
  __syncthreads();  // the staged tile lies over operands that other warps may still be reading
  for_each_pair(sums, place, [&](int row, int column, float low, float high) {
    *reinterpret_cast<float2*>(staged + row * kStagedRow + column) = make_float2(low, high);
  });
  cluster_sync();
  constexpr int kRowChunks = BLOCK_N / 8;
  const unsigned smem = smem_address(memory);
  for (int chunk = cluster_rank() * kThreads + threadIdx.x; chunk < BLOCK_M * kRowChunks; chunk += kSplits * kThreads) {
    const int row = chunk / kRowChunks, column = chunk % kRowChunks * 8;
    float4 low = make_float4(0, 0, 0, 0), high = low;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      const unsigned remote = map_to_rank(smem + (row * kStagedRow + column) * sizeof(float), split);
      low = add(low, load_remote(remote));
      high = add(high, load_remote(remote + sizeof(float4)));
    }
//@section activation-cluster
    low = activated<Activation>(low), high = activated<Activation>(high);
//@section cluster
    if constexpr (kAlignD == 8) {
      if (kGuardD && (m0 + row >= M || n0 + column >= N)) continue;
      *reinterpret_cast<uint4*>(d + (m0 + row) * N + n0 + column) =
          make_uint4(pack<Element>(low.x, low.y), pack<Element>(low.z, low.w), pack<Element>(high.x, high.y),
                     pack<Element>(high.z, high.w));
    } else {
      if (m0 + row >= M) continue;
      const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (n0 + column + i < N) d[(m0 + row) * N + n0 + column + i] = round_to<Element>(values[i]);
      }
    }
  }
  cluster_sync();  // no CTA may end while another still reads its shared memory
}

//@end
// ---- the kernel -----------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas)
    hgemm(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ d
//@section bias
          , const Element* bias
//@section workspace
          , unsigned* __restrict__ counters, float4* __restrict__ partials
//@section any-shape
          , int M, int N, int K
//@end
    ) {
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned smem = smem_address(memory);
  const int warp = threadIdx.x / 32;
  const Place place = {static_cast<int>(threadIdx.x % 32), warp / kWarpsN % kWarpsM * WARP_M, warp % kWarpsN * WARP_N,
                       warp / (kWarpsN * kWarpsM)};

//@section one-split
  const unsigned tile = blockIdx.x;
  constexpr int split = 0;
//@section splits
  // The CTAs that share a tile are neighbours, so that their sums are ready at about the same time.
  const int tile = blockIdx.x / kSplits, split = blockIdx.x % kSplits;
//@end
  const int blocks_n = (N + BLOCK_N - 1) / BLOCK_N;
//@section one-row
  const int m0 = tile / blocks_n * BLOCK_M, n0 = tile % blocks_n * BLOCK_N;
//@section grouped
  const TileIndex block = grouped_raster<kGroupM>(tile, (M + BLOCK_M - 1) / BLOCK_M, blocks_n);
  const int m0 = block.m * BLOCK_M, n0 = block.n * BLOCK_N;
//@end

  // Splits are whole K blocks, so that only the last one can reach past K.
  const int split_blocks = (K + BLOCK_K * kSplits - 1) / (BLOCK_K * kSplits);
  const int k_begin = split * split_blocks * BLOCK_K;
  const int k_blocks = min(split_blocks, (K - k_begin + BLOCK_K - 1) / BLOCK_K);

//@section programmatic
  // The next kernel may start its own prologue at once: it waits, as this one does, before it accesses memory.
  launch_dependents();
  wait_for_dependencies();

//@end
  Accumulators accumulators = {};
//@section bias
  if (split == 0 && place.slice == 0) begin_sums(accumulators, place, bias, n0, N);
//@end
  multiply(accumulators, smem, place, a, b, m0, n0, k_begin, k_blocks, M, N, K);

//@section packed
  Sums sums;
  widen(sums, accumulators);
//@section floats
  Sums& sums = accumulators;
//@section slices
  sum_slices(sums, memory, place);
//@section sum-last
  if (!sum_splits(sums, partials, counters, place, tile, split)) return;
//@section sum-spread
  float4* const slots = partials + static_cast<long long>(tile) * (kSplits * kSlot);
  share_sums(sums, slots, counters + tile * kCounterPitch, place, split);
  store_share(d, slots, split, m0, n0, M, N);
//@section activation-direct activation-staged
  activate(sums, place);
//@section direct
  store_tile(d, sums, place, m0, n0, M, N);
//@section staged
  store_tile(d, sums, memory, place, m0, n0, M, N);
//@section cluster
  store_cluster_sum(d, sums, memory, place, m0, n0, M, N);
//@end
}
