//@section row-major-a
// D = A B: A row-major M x K, B row-major K x N (kRowMajorB) or column-major, D row-major M x N.
//@section column-major-a
// D = A B: A column-major (K x M in memory), B row-major K x N, D row-major M x N.
//@section sm-90
// For small outputs, whose time is latency. A CTA loads all of its operands at once, right behind the wait for the preceding
// kernel: there is no ring, and no buffer is used twice. K is divided between the CTAs of a cluster, and between slices of
// warps within a CTA. A slice loads what it multiplies itself, and waits for nothing else. Partial sums are added in a fixed
// order: those of slices through shared memory, those of CTAs by pushes from registers into the CTA that stores the result.
//@section before-sm-90
// For small outputs, whose time is latency. A CTA loads all of its operands at once: there is no ring, and a buffer is used
// again only where K is long. K is divided between slices of warps. A slice loads what it multiplies itself, and waits for
// nothing else. The partial sums of slices are added in a fixed order, through shared memory.
//@section activation
// An activation of the complete sums is what is rounded to D.
#include <cudal2/activation.cuh>
//@end
#include <cudal2/barrier.cuh>
//@section bias
#include <cudal2/bias.cuh>
//@section sm-90
#include <cudal2/cluster.cuh>
//@end
#include <cudal2/convert.cuh>
//@section copies
#include <cudal2/cp_async.cuh>
//@end
#include <cudal2/ldmatrix.cuh>
//@section sm-90
#include <cudal2/mbarrier.cuh>
//@end
#include <cudal2/mma.cuh>
//@section copies
#include <cudal2/opaque.cuh>
//@section sm-90
#include <cudal2/programmatic.cuh>
//@end
#include <cudal2/shared.cuh>
#include <cudal2/swizzle.cuh>
//@section sm-90
#include <cudal2/tma.cuh>
//@end

using namespace cudal2;

//@constants

// ---- what follows from the constants --------------------------------------------------------------------------------------
constexpr int kSliceThreads = 32 * kWarpsM * kWarpsN;
constexpr int kThreads = kSliceThreads * kWarpsK;
constexpr int WARP_M = BLOCK_M / kWarpsM, WARP_N = BLOCK_N / kWarpsN;
constexpr int kMmasM = WARP_M / 16, kMmasN = WARP_N / 8;
constexpr int kSteps = BLOCK_K / 16;
//@section one-pass
constexpr int kSliceK = kGroups * BLOCK_K;       // K of a slice
//@section passes
// More K than fits: a slot that has been multiplied is loaded again, with the group that lies kGroups further on.
constexpr int kPassK = kGroups * BLOCK_K;        // K of a slice in one pass over its slots
constexpr int kSliceK = kPasses * kPassK;        // K of a slice
//@end
constexpr int kCtaK = kWarpsK * kSliceK;         // K of a CTA
// Two sets of accumulators where a warp has few products: a product then waits less for the one before.
constexpr int kChains = kMmasM * kMmasN <= 4 && kSteps % 2 == 0 ? 2 : 1;

// Operands lie in panels of up to 64 columns, with the swizzle that a TMA box of this width has.
//@section row-major-a
constexpr int kPanelA = BLOCK_K < 64 ? BLOCK_K : 64;
//@section column-major-a
constexpr int kPanelA = BLOCK_M % 64 == 0 ? 64 : BLOCK_M % 32 == 0 ? 32 : 16;
//@end
constexpr int kRowsB = kRowMajorB ? BLOCK_K : BLOCK_N, kColumnsB = kRowMajorB ? BLOCK_N : BLOCK_K;  // as B lies in memory
constexpr int kPanelB = kColumnsB % 64 == 0 ? 64 : kColumnsB % 32 == 0 ? 32 : 16;
constexpr unsigned kBytesA = BLOCK_M * BLOCK_K * 2, kBytesB = BLOCK_N * BLOCK_K * 2;
constexpr unsigned kGroupBytes = kBytesA + kBytesB;

// An octet is what a lane holds of two neighbouring 16x8 products: eight sums, for 16 bytes of D after an exchange in the quad.
constexpr int kPairs = BLOCK_M / 16 * BLOCK_N / 16;
constexpr int kOctets = kPairs * 32;
constexpr unsigned kTileBytes = kOctets * 32;  // of the partial sums of a tile
// The sums of a slice lie over its own operands where they fit.
constexpr unsigned kSliceBytes =
    kWarpsK > 1 && kTileBytes > kGroups * kGroupBytes ? kTileBytes : kGroups * kGroupBytes;
//@section cluster boxes
constexpr unsigned kMailbox = kWarpsK * kSliceBytes;  // parts of the sums from every CTA of the cluster
constexpr unsigned kBarriers = kMailbox + (kClusterK > 1 ? kTileBytes : 0);
//@end

static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's tile is made of pairs of 16x8 products");
static_assert(BLOCK_K % 32 == 0, "panels start on whole swizzle patterns");
static_assert(kOctets % (4 * kClusterK) == 0, "a CTA of the cluster stores whole rows of 16 bytes");
static_assert(kThreads <= 1024 && kWarpsK < 16, "a CTA has at most 1024 threads, and 15 named barriers");
//@section fixed-shape
static_assert(K <= kClusterK * kCtaK, "the CTAs of a tile cover K");
//@end

struct Place {  // where a warp works: its tile of the CTA's tile, and its slice of K
  int lane, row, column, slice;
};

struct Octet {
  float4 left, right;
};

// ---- from global to shared memory -----------------------------------------------------------------------------------------
//@section copies
// What a thread copies of the tiles of one operand: kRows x kColumns in panels of kPanel columns, for every group. Addresses
// are computed before the wait for the preceding kernel. With kGuarded, elements outside the matrix become zero; rows are
// multiples of 16 bytes, so no copy straddles the edge.
template <int kRows, int kColumns, int kPanel, bool kGuarded>
struct Copies {
  static constexpr int kAcross = kColumns / 8 < kSliceThreads ? kColumns / 8 : kSliceThreads;  // threads side by side in a row
  static constexpr int kDown = kSliceThreads / kAcross;                                        // rows that they copy at a time
  static constexpr int kChunks = kPanel / 8;
  static_assert((kDown & (kDown - 1)) == 0 && kDown * kAcross == kSliceThreads, "threads divide a tile evenly");
  static_assert(kAcross * 8 == kColumns, "a slice has a thread for every 16 bytes of a row");

  unsigned target;
  const Element* source;
  int stride, below, right;  // columns of the matrix; its rows from this thread's first on, and its columns

  __device__ __forceinline__ Copies(unsigned smem, const Element* __restrict__ matrix, int row0, int column0, int rows,
                                    int columns) {
    const int thread = threadIdx.x % kSliceThreads;
    const int row = thread / kAcross, column = thread % kAcross * 8;
    target = smem + column / kPanel * (kRows * kPanel * 2) + swizzled<kPanel>(row, column % kPanel);
    source = matrix + static_cast<long long>(row0 + row) * columns + column0 + column;
    stride = columns;
    below = rows - row0 - row;
    right = columns - column0 - column;
    hide(source);  // the addresses of all copies differ from these by constants
    hide(target);
  }

//@section copies-again
  // Moves on by `down` rows and `across` columns of the matrix.
  __device__ __forceinline__ void advance(int down, int across) {
    source += static_cast<long long>(down) * stride + across;
    below -= down;
    right -= across;
  }

//@section copies
  __device__ __forceinline__ bool is_null() const { return source == nullptr || target == 0xffffffffu; }

  // Starts the copies of a group, which lies `down` rows and `across` columns from the first one.
  __device__ __forceinline__ void start(int group, int down, int across) const {
#pragma unroll
    for (int r = 0; r < kRows; r += kDown) {
      if (kRows < kDown && r + static_cast<int>(threadIdx.x % kSliceThreads) / kAcross >= kRows) break;
      constexpr int kRowsPerPhase = 8 / kChunks;
      const unsigned phase = r / kRowsPerPhase % kChunks * 16;  // rows r and below flip different bits
      const unsigned to = (target ^ phase) + group * kGroupBytes + r * kPanel * 2;
      const Element* from = source + static_cast<long long>(down + r) * stride + across;
      if constexpr (kGuarded) {
        cp_async_or_zero<16>(to, from, down + r < below && across < right);
      } else {
        cp_async<16>(to, from);
      }
    }
  }
};

//@section copies-row-major-a
using CopiesA = Copies<BLOCK_M, BLOCK_K, kPanelA, kGuardA>;
//@section copies-column-major-a
using CopiesA = Copies<BLOCK_K, BLOCK_M, kPanelA, kGuardA>;
//@section copies
using CopiesB = Copies<kRowsB, kColumnsB, kPanelB, kGuardB>;

//@section copies-once
// Starts all copies of this slice, a commit group for every BLOCK_K of K.
__device__ __forceinline__ void load_all(const CopiesA& a, const CopiesB& b) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
//@section copies-again
// Starts the copies of groups of this slice, a commit group for every BLOCK_K of K.
__device__ __forceinline__ void load_groups(const CopiesA& a, const CopiesB& b, int begin, int end) {
#pragma unroll
  for (int group = begin; group < end; ++group) {
//@section copies
    const int k = group * BLOCK_K;
//@section copies-row-major-a
    a.start(group, 0, k);
//@section copies-column-major-a
    a.start(group, k, 0);
//@section copies
    b.start(group, kRowMajorB ? k : 0, kRowMajorB ? 0 : k);
    cp_async_commit();
  }
}

//@section copies-again
__device__ __forceinline__ void load_all(const CopiesA& a, const CopiesB& b) { load_groups(a, b, 0, kGroups); }

//@section copies
// Waits until a group of this slice has arrived. Groups of other slices are not waited for.
template <int kGroup>
__device__ __forceinline__ void wait_for_group(unsigned, const Place& place) {
  cp_async_wait<kGroups - 1 - kGroup>();
  if constexpr (kWarpsK == 1) {
    __syncthreads();
  } else if constexpr (kSliceThreads == 32) {
    __syncwarp();
  } else {
    named_barrier(1 + place.slice, kSliceThreads);
  }
}

//@section boxes-once
// Starts all copies of this slice from one thread, with an mbarrier for every BLOCK_K of K. Elements outside are zero.
__device__ __forceinline__ void load_all(unsigned smem, unsigned barriers, const TensorMap& a, const TensorMap& b, int m0,
                                         int n0, int k0) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
//@section boxes-again
// Starts the copies of groups of this slice from one thread, with an mbarrier for every slot. Elements outside are zero.
__device__ __forceinline__ void load_groups(unsigned smem, unsigned barriers, const TensorMap& a, const TensorMap& b, int m0,
                                            int n0, int k0, int begin, int end) {
#pragma unroll
  for (int group = begin; group < end; ++group) {
//@section boxes
    const int k = k0 + group * BLOCK_K;
    const unsigned tile = smem + group * kGroupBytes, barrier = barriers + 8 * group;
#pragma unroll
//@section boxes-row-major-a
    for (int c = 0; c < BLOCK_K; c += kPanelA) tma_load(tile + c * BLOCK_M * 2, a, barrier, k + c, m0);
//@section boxes-column-major-a
    for (int c = 0; c < BLOCK_M; c += kPanelA) tma_load(tile + c * BLOCK_K * 2, a, barrier, m0 + c, k);
//@section boxes
#pragma unroll
    for (int c = 0; c < kColumnsB; c += kPanelB) {
      const unsigned target = tile + kBytesA + c * kRowsB * 2;
      if constexpr (kRowMajorB) {
        tma_load(target, b, barrier, n0 + c, k);
      } else {
        tma_load(target, b, barrier, k + c, n0);
      }
    }
  }
}

//@section boxes-again
__device__ __forceinline__ void load_all(unsigned smem, unsigned barriers, const TensorMap& a, const TensorMap& b, int m0,
                                         int n0, int k0) {
  load_groups(smem, barriers, a, b, m0, n0, k0, 0, kGroups);
}

//@section boxes-once
template <int kGroup>
__device__ __forceinline__ void wait_for_group(unsigned barriers, const Place&) {
  mbarrier_wait(barriers + 8 * kGroup, 0);
}

//@section passes
// Waits until no warp of this slice reads the group that it multiplied last.
__device__ __forceinline__ void meet_in_slice(const Place& place) {
  if constexpr (kSliceThreads == 32) {
    __syncwarp();
  } else if constexpr (kWarpsK == 1) {
    __syncthreads();
  } else {
    named_barrier(1 + place.slice, kSliceThreads);
  }
}

//@end
// ---- from shared memory to sums -------------------------------------------------------------------------------------------
// Accumulators of a warp, as mma.cuh lays them out.
using Accumulators = Register[kChains][kMmasM][kMmasN][kRegisters];

// Where a lane's rows of fragments begin in the tiles of a group. Steps along K flip bits of the swizzled offset.
struct FragmentOffsets {
//@section row-major-a
  unsigned a;
//@section column-major-a
  unsigned a[kMmasM];
//@end
  unsigned b[kMmasN / 2];

  __device__ __forceinline__ explicit FragmentOffsets(const Place& place) {
    const int lane = place.lane;
//@section row-major-a
    a = swizzled<kPanelA>(place.row + lane % 16, lane / 16 * 8);
//@section column-major-a
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {  // rows in shared memory run along M, so ldmatrix transposes the 8x8 tiles
      const int row = place.row + 16 * i;
      const int panel = row / kPanelA * (BLOCK_K * kPanelA * 2);
      a[i] = panel + swizzled<kPanelA>(lane / 16 * 8 + lane % 8, row % kPanelA + lane / 8 % 2 * 8);
    }
//@end
#pragma unroll
    for (int pair = 0; pair < kMmasN / 2; ++pair) {
      const int column = place.column + 16 * pair;
      if constexpr (kRowMajorB) {  // rows in shared memory run along N, so ldmatrix transposes the 8x8 tiles
        const int panel = column / kPanelB * (kRowsB * kPanelB * 2);
        b[pair] = panel + swizzled<kPanelB>(lane % 16, column % kPanelB + lane / 16 * 8);
      } else {
        b[pair] = swizzled<kPanelB>(column + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
      }
    }
  }
};

// Multiplies one group, whose tile of A lies at `tile`.
__device__ __forceinline__ void multiply_group(Accumulators& sums, unsigned tile, const FragmentOffsets& at) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    unsigned a[kMmasM][4], b[kMmasN][2];
//@section row-major-a
    constexpr int kStepsA = kPanelA / 16;
    const unsigned from_a = tile + step / kStepsA * (BLOCK_M * kPanelA * 2) + (at.a ^ (step % kStepsA * 32));
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) ldmatrix_x4(from_a + i * (16 * kPanelA * 2), a[i][0], a[i][1], a[i][2], a[i][3]);
//@section column-major-a
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
      ldmatrix_x4_trans(tile + at.a[i] + step * (16 * kPanelA * 2), a[i][0], a[i][1], a[i][2], a[i][3]);
    }
//@end
#pragma unroll
    for (int j = 0; j < kMmasN; j += 2) {
      if constexpr (kRowMajorB) {
        const unsigned from = tile + kBytesA + at.b[j / 2] + step * (16 * kPanelB * 2);
        ldmatrix_x4_trans(from, b[j][0], b[j][1], b[j + 1][0], b[j + 1][1]);
      } else {
        constexpr int kStepsB = kPanelB / 16;
        const unsigned panel = tile + kBytesA + step / kStepsB * (kRowsB * kPanelB * 2);
        ldmatrix_x4(panel + (at.b[j / 2] ^ (step % kStepsB * 32)), b[j][0], b[j][1], b[j + 1][0], b[j + 1][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
      for (int j = 0; j < kMmasN; ++j) mma_m16n8k16<Element>::run(sums[step % kChains][i][j], a[i], b[j]);
    }
  }
}

//@section bias
// What the sums of the first part of K begin with, of which each column of D has an element.
__device__ __forceinline__ void begin_sums(Accumulators& sums, const Place& place, const Element* bias, int n0, int N) {
#pragma unroll
  for (int j = 0; j < kMmasN; ++j) {
    const float2 pair = bias_of_pair(bias, n0 + place.column + 8 * j + place.lane % 4 * 2, N);
#pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
      sums[0][i][j][0] = sums[0][i][j][2] = pair.x;
      sums[0][i][j][1] = sums[0][i][j][3] = pair.y;
    }
  }
}

//@section one-pass
template <int kGroup>
__device__ __forceinline__ void multiply_from(Accumulators& sums, unsigned smem, unsigned barriers, const Place& place,
                                              const FragmentOffsets& at) {
  wait_for_group<kGroup>(barriers, place);
  multiply_group(sums, smem + kGroup * kGroupBytes, at);
  if constexpr (kGroup + 1 < kGroups) multiply_from<kGroup + 1>(sums, smem, barriers, place, at);
}

//@end
// ---- from sums to D -------------------------------------------------------------------------------------------------------
__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

__device__ __forceinline__ void add_to(Octet& total, const Octet& part) {
  total = {add(total.left, part.left), add(total.right, part.right)};
}

__device__ __forceinline__ float4 widened(const float (&sum)[4]) { return make_float4(sum[0], sum[1], sum[2], sum[3]); }

__device__ __forceinline__ float4 widened(const unsigned (&sum)[2]) {
  const float2 upper = unpack_halves(sum[0]), lower = unpack_halves(sum[1]);
  return make_float4(upper.x, upper.y, lower.x, lower.y);
}

__device__ __forceinline__ float4 product(const Accumulators& sums, int i, int j) {
  float4 total = widened(sums[0][i][j]);
  if constexpr (kChains == 2) total = add(total, widened(sums[1][i][j]));
  return total;
}

// Where a lane stores 16 bytes of a pair of products: row of the tile and first column.
__device__ __forceinline__ int row_of(int pair, int lane) { return pair / (BLOCK_N / 16) * 16 + lane % 2 * 8 + lane / 4; }
__device__ __forceinline__ int column_of(int pair, int lane) { return pair % (BLOCK_N / 16) * 16 + lane / 2 % 2 * 8; }

// Stores the octets of a warp, each lane 16 bytes of a row of D. Each quad of lanes transposes its four columns of packed
// pairs: lane i of the quad gets row i of {upper left, lower left, upper right, lower right}. All lanes take part.
__device__ __forceinline__ void store_octet(Element* __restrict__ d, const Octet& octet, int pair, int lane, bool wanted,
                                            int m0, int n0, int M, int N) {
//@section no-activation
  unsigned v[4] = {pack<Element>(octet.left.x, octet.left.y), pack<Element>(octet.left.z, octet.left.w),
                   pack<Element>(octet.right.x, octet.right.y), pack<Element>(octet.right.z, octet.right.w)};
//@section activation
  const float4 left = activated<Activation>(octet.left), right = activated<Activation>(octet.right);
  unsigned v[4] = {pack<Element>(left.x, left.y), pack<Element>(left.z, left.w), pack<Element>(right.x, right.y),
                   pack<Element>(right.z, right.w)};
//@end
  const bool odd = lane % 2 != 0, high = lane / 2 % 2 != 0;
#pragma unroll
  for (int half = 0; half < 4; half += 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? v[half] : v[half + 1], 1);
    v[half] = odd ? other : v[half];
    v[half + 1] = odd ? v[half + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    v[i] = high ? other : v[i];
    v[i + 2] = high ? v[i + 2] : other;
  }
  const int row = m0 + row_of(pair, lane), column = n0 + column_of(pair, lane);
  if (!wanted || (kGuardD && (row >= M || column >= N))) return;
  *reinterpret_cast<uint4*>(d + static_cast<long long>(row) * N + column) = make_uint4(v[0], v[1], v[2], v[3]);
}

//@section cluster slices
// Where there are four threads for every octet: thread t adds pair t of the octets from `first` on, which lie `kStride` bytes
// apart in kParts parts, and stores its 4 bytes.
template <int kParts, int kCount, unsigned kStride>
__device__ __forceinline__ void store_pairs(Element* __restrict__ d, unsigned smem, int first, int m0, int n0, int M, int N) {
  const int thread = threadIdx.x;
  const int octet = first + thread % (2 * kCount) / 2;
  const int pair = octet / 32, lane = octet % 32;
  const int row = m0 + pair / (BLOCK_N / 16) * 16 + thread % 2 * 8 + lane / 4;
  const int column = n0 + pair % (BLOCK_N / 16) * 16 + thread / (2 * kCount) * 8 + lane % 4 * 2;
  Element* const to = d + static_cast<long long>(row) * N + column;
  float2 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const unsigned from = smem + part * kStride + thread * 8;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(parts[part].x), "=f"(parts[part].y) : "r"(from) : "memory");
  }
  constexpr int kSums = kParts < 4 ? kParts : 4;  // independent chains of additions
#pragma unroll
  for (int part = kSums; part < kParts; ++part) {
    parts[part % kSums].x += parts[part].x;
    parts[part % kSums].y += parts[part].y;
  }
#pragma unroll
  for (int part = 1; part < kSums; ++part) {
    parts[0].x += parts[part].x;
    parts[0].y += parts[part].y;
  }
  if (kGuardD && (row >= M || column >= N)) return;
//@section activation-of-pairs
  parts[0] = activated<Activation>(parts[0]);
//@section cluster slices
  *reinterpret_cast<unsigned*>(to) = pack<Element>(parts[0].x, parts[0].y);
}

//@section cluster
constexpr int kShare = kOctets / kClusterK;  // octets of the tile that one CTA stores

// Sends an octet's sums to the CTA that stores it, into the part of the mailbox that belongs to this CTA.
__device__ __forceinline__ void push(const Octet& octet, int index, unsigned rank, unsigned mailbox, unsigned barrier) {
  const unsigned owner = index / kShare;
  const unsigned target = map_to_rank(mailbox + (rank * 2 * kShare + index % kShare) * 16, owner);
  const unsigned signalled = map_to_rank(barrier, owner);
  store_remote_async(target, octet.left, signalled);
  store_remote_async(target + kShare * 16, octet.right, signalled);
}

// Adds the parts of this CTA's octets in a fixed order, and stores them. The CTA ends only behind this wait, so no push reaches
// a CTA that has ended.
__device__ __forceinline__ void store_share(Element* __restrict__ d, unsigned rank, unsigned mailbox, unsigned barrier, int m0,
                                            int n0, int M, int N) {
  constexpr int kWarps = kThreads / 32;
  constexpr bool kByPairs = 4 * kShare <= kThreads;
  constexpr int kWarpsOfShare = ((kByPairs ? 4 : 1) * kShare + 31) / 32;
  if (threadIdx.x / 32 >= kWarpsOfShare) return;
  mbarrier_wait(barrier, 0);
  if constexpr (kByPairs) {
    if (threadIdx.x < 4 * kShare) store_pairs<kClusterK, kShare, 32 * kShare>(d, mailbox, rank * kShare, m0, n0, M, N);
  }
#pragma unroll
  for (int first = kByPairs ? kWarpsOfShare : 0; first < kWarpsOfShare; first += kWarps) {
    const int mine = first * 32 + threadIdx.x;
    if (kWarpsOfShare % kWarps != 0 && mine / 32 >= kWarpsOfShare) break;
    const int kept = kShare % 32 == 0 ? mine : min(mine, kShare - 1);
    Octet parts[kClusterK];
#pragma unroll
    for (int part = 0; part < kClusterK; ++part) {
      const unsigned from = mailbox + (part * 2 * kShare + kept) * 16;
      parts[part] = {load_shared(from), load_shared(from + kShare * 16)};
    }
    constexpr int kSums = kClusterK < 4 ? kClusterK : 4;  // independent chains of additions
#pragma unroll
    for (int part = kSums; part < kClusterK; ++part) add_to(parts[part % kSums], parts[part]);
#pragma unroll
    for (int part = 1; part < kSums; ++part) add_to(parts[0], parts[part]);
    const int index = rank * kShare + mine;
    store_octet(d, parts[0], index / 32, index % 32, mine < kShare, m0, n0, M, N);
  }
}

//@section slices
// Hands a slice's sums over through shared memory, over its own operands.
__device__ __forceinline__ void write_octet(unsigned smem, int index, const Octet& octet) {
  const auto write = [](unsigned address, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
  };
  write(smem + index * 16, octet.left);
  write(smem + (kOctets + index) * 16, octet.right);
}

// The sum of the slices' octets, in the order of the slices.
__device__ __forceinline__ Octet sum_of_slices(unsigned smem, int index) {
  Octet total = {load_shared(smem + index * 16), load_shared(smem + (kOctets + index) * 16)};
#pragma unroll
  for (int slice = 1; slice < kWarpsK; ++slice) {
    const unsigned from = smem + slice * kSliceBytes + index * 16;
    add_to(total, {load_shared(from), load_shared(from + kOctets * 16)});
  }
  return total;
}

//@end
// ---- the kernel -----------------------------------------------------------------------------------------------------------
//@section one-pass
extern "C" __global__ void __launch_bounds__(kThreads)
//@section passes
extern "C" __global__ void __launch_bounds__(kThreads, 1)  // no occupancy is worth a spilled address
//@end
    latency_gemm(
//@section copies
        const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ d
//@section boxes
        const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, Element* __restrict__ d
//@section bias
        , const Element* bias
//@section any-shape
        , int M, int N, int K
//@end
    ) {
//@section programmatic
  launch_dependents();
//@end
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned smem = align_up<1024>(smem_address(memory));
  const int warp = threadIdx.x / 32;
  const Place place = {static_cast<int>(threadIdx.x % 32), warp / kWarpsN % kWarpsM * WARP_M, warp % kWarpsN * WARP_N,
                       warp / (kWarpsN * kWarpsM)};
  const unsigned slice = smem + place.slice * kSliceBytes;
//@section boxes
  const unsigned full = smem + kBarriers + 8 + 8 * kGroups * place.slice;
  const bool loads = threadIdx.x % kSliceThreads == 0;
  if (loads) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) mbarrier_init(full + 8 * group, 1);
    mbarrier_init_fence();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) mbarrier_arrive_expect(full + 8 * group, kGroupBytes);
    tma_prefetch_map(map_a);
    tma_prefetch_map(map_b);
  }
  __syncwarp();
//@section copies
  constexpr unsigned full = 0;
//@section cluster
  const unsigned rank = cluster_rank();
  const unsigned mailbox = smem + kMailbox, landed = smem + kBarriers;
  if (threadIdx.x == 0) {
    mbarrier_init(landed, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(landed, kTileBytes);
  }
  __syncwarp();
  cluster_arrive_relaxed();
//@section one-cta
  constexpr unsigned rank = 0;
//@section meets
  __syncthreads();
//@end
  const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
  const int tile = blockIdx.x / kClusterK;
  const int m0 = tile / tiles_n * BLOCK_M, n0 = tile % tiles_n * BLOCK_N;
  const int k0 = rank * kCtaK + place.slice * kSliceK;
  const FragmentOffsets at(place);
//@section copies
//@section copies-row-major-a
  const CopiesA copies_a(slice, a, m0, k0, M, K);
//@section copies-column-major-a
  const CopiesA copies_a(slice, a, k0, m0, K, M);
//@section copies
  const CopiesB copies_b(slice + kBytesA, b, kRowMajorB ? k0 : n0, kRowMajorB ? n0 : k0, kRowMajorB ? K : N,
                         kRowMajorB ? N : K);
  // Never so: without a use here the compiler computes the addresses behind the wait.
  if (copies_a.is_null() || copies_b.is_null()) return;
//@section programmatic
  wait_for_dependencies();
//@section copies
  load_all(copies_a, copies_b);
//@section boxes
  if (loads) load_all(slice, full, map_a, map_b, m0, n0, k0);
  __syncwarp();
//@section cluster
  cluster_wait();  // from here on every peer has its barrier ready
//@end
  Accumulators sums = {};
//@section bias
  if (rank == 0 && place.slice == 0) begin_sums(sums, place, bias, n0, N);
//@section copies-again
  CopiesA later_a = copies_a;
  CopiesB later_b = copies_b;
//@section passes
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const bool again = pass + 1 < kPasses;
//@section copies-again
//@section copies-again-row-major-a
    later_a.advance(0, kPassK);
//@section copies-again-column-major-a
    later_a.advance(kPassK, 0);
//@section copies-again
    later_b.advance(kRowMajorB ? kPassK : 0, kRowMajorB ? 0 : kPassK);
//@section passes
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
//@section copies-again
      wait_for_group<0>(full, place);  // kGroups - 1 younger groups may be in flight
//@section boxes-again
      mbarrier_wait(full + 8 * group, pass % 2);
//@section passes
      multiply_group(sums, slice + group * kGroupBytes, at);
      if (again) meet_in_slice(place);
//@section copies-again
      if (again) {
        load_groups(later_a, later_b, group, group + 1);
      } else {
        cp_async_commit();  // an empty group, so that the count of younger groups holds in the last pass
      }
//@section boxes-again
      if (again && loads) {
        mbarrier_arrive_expect(full + 8 * group, kGroupBytes);
        load_groups(slice, full, map_a, map_b, m0, n0, k0 + (pass + 1) * kPassK, group, group + 1);
      }
//@section passes
    }
  }
//@section one-pass
  multiply_from<0>(sums, slice, full, place, at);

//@section slices
  if constexpr (kSliceThreads == 32) {
    __syncwarp();
  } else {
    named_barrier(1 + place.slice, kSliceThreads);
  }
//@end
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmasN; j += 2) {
      const int pair = (place.row / 16 + i) * (BLOCK_N / 16) + place.column / 16 + j / 2;
      const Octet octet = {product(sums, i, j), product(sums, i, j + 1)};
//@section slices
      write_octet(slice, pair * 32 + place.lane, octet);
    }
  }
  __syncthreads();
  constexpr bool kByPairs = kClusterK == 1 && 4 * kOctets <= kThreads;
  if (kByPairs && threadIdx.x < 4 * kOctets) store_pairs<kWarpsK, kOctets, kSliceBytes>(d, smem, 0, m0, n0, M, N);
#pragma unroll
  for (int first = kByPairs ? kPairs : 0; first < kPairs; first += kThreads / 32) {
    const int pair = first + warp;
    if (kPairs % (kThreads / 32) == 0 || pair < kPairs) {
      const Octet octet = sum_of_slices(smem, pair * 32 + place.lane);
//@section cluster
      push(octet, pair * 32 + place.lane, rank, mailbox, landed);
//@section one-cta
      store_octet(d, octet, pair, place.lane, true, m0, n0, M, N);
//@end
    }
  }
//@section cluster
  store_share(d, rank, mailbox, landed, m0, n0, M, N);
//@end
}
