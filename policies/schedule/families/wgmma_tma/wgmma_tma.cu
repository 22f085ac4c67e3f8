//@section of-row-major-a
// D = A B on Hopper: A row-major M x K, B row-major K x N (kRowMajorB) or column-major, D row-major M x N.
//@section of-column-major-a
// D = A B on Hopper: A column-major (K x M in memory), B row-major K x N, D row-major M x N.
//@section of-turned
// D = A B on Hopper, turned: A, M and rows below are those of the transposed B, and B, N and columns those of the transposed A.
// The transposed D that comes out is transposed again on its way to shared memory, so that D itself is row-major.
//@end
//@section fed-apart
// One thread of the producer keeps a ring of shared-memory stages full with TMA; consumer warpgroups multiply the stages with
// wgmma, keep the sums in registers, and store them through shared memory with TMA. CTAs of a cluster may share operands by
//@section self-fed
// Warpgroups multiply the stages of a ring in shared memory with wgmma, keep the sums in registers, and store them through shared
// memory with TMA. There is no producer: one thread of theirs loads between its products. CTAs of a cluster may share operands by
//@section aligned-rows
// multicast, and may each take a part of K. M, N and K are arguments; rows must be multiples of 16 bytes.
//@section unaligned-rows
// multicast, and may each take a part of K. M, N and K are arguments. Operands whose rows TMA cannot read are packed by a launch
// before this one; a D whose rows it cannot write leaves in words.
//@section paired-rows
// multicast, and may each take a part of K. M, N and K are arguments. An operand whose rows are odd multiples of 8 bytes is read as
// pairs of rows by one tensor map, in which rows of odd number lie 4 columns to the right. Warps beside the producer move them back.
// A D with such rows leaves in words.
//@section bias
// The sums of the first part of K begin with the bias, of which each column of D has an element.
//@section activation-of-sums
// An activation of the complete sums is what is rounded to D.
//@section gated
// D is the activation of that product, times A up. The weights' half of a stage is rows of B, and behind them the same rows of `up`.
// A thread has the sums of both for the same outputs, and rounds what they make to D.
//@end
#include <cuda_bf16.h>
#include <cuda_fp16.h>

//@section activation
#include <cudal2/activation.cuh>
//@end
#include <cudal2/barrier.cuh>
//@section bias
#include <cudal2/bias.cuh>
//@end
#include <cudal2/cluster.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/raster.cuh>
#include <cudal2/registers.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/stmatrix.cuh>
//@section paired-rows
#include <cudal2/swizzle.cuh>
//@end
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;

//@constants

// ---- what follows from the constants --------------------------------------------------------------------------------------
constexpr int kWarpgroup = 128;
constexpr int kTileWarpgroups = kPingpong ? 1 : kConsumers;  // that share one tile
constexpr int BLOCK_M = 64 * kAtoms * kTileWarpgroups;
constexpr int kConsumerThreads = kWarpgroup * kConsumers;
//@section gated-upright
constexpr int kRowsOfD = BLOCK_M, kColumnsOfD = BLOCK_N / 2;  // in a tile: columns of B, and as many of `up`
//@section gated-turned
constexpr int kRowsOfD = BLOCK_M / 2, kColumnsOfD = BLOCK_N;  // in a tile: rows of B, and as many of `up`
static_assert(kAtoms == 2, "of a warpgroup's two instructions one reads B, the other `up`");
//@section fed-apart
// The producer is one warp; where the consumers need more registers than an even share, it is a whole warpgroup, so that
// its registers can be handed over.
constexpr bool kHandOver = kConsumers > 1 || kCtasPerSm > 1;
//@section producer-alone
constexpr int kThreads = kConsumerThreads + (kHandOver ? kWarpgroup : 32);
//@section paired-rows
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr int kShifters = 3;  // warps beside the producer's that move rows of odd number
//@section self-fed
constexpr bool kHandOver = false;
constexpr int kThreads = kConsumerThreads;
constexpr int kBehind = 2;  // blocks of K ago that a stage was read which takes a block now
//@end
//@section few-registers
constexpr int kProducerRegisters = 40;
//@section more-registers
constexpr int kProducerRegisters = 56;
//@end
// A CTA owns what its threads had at launch; a warpgroup that asks for more waits for ever.
constexpr int kLaunchRegisters = 65536 / (kThreads * kCtasPerSm) / 8 * 8;
constexpr int kConsumerRegisters = (kThreads * kLaunchRegisters - kWarpgroup * kProducerRegisters) / kConsumerThreads / 8 * 8;
constexpr int kClusterSize = kClusterM * kClusterN * kClusterK;
constexpr int kPanels = BLOCK_K / 64;  // K-major operands lie in panels of 64 elements (128 bytes) along K
//@section column-major-a
constexpr int kGroupsA = BLOCK_M / 64;  // of 64 rows of the tile, 128 bytes along M; a group is what an instruction reads
constexpr bool kSliceGroupsOfA = kGroupsA % kClusterN == 0;  // how multicast slices A: by groups, else by K
constexpr int kSliceGroupsA = kSliceGroupsOfA ? kGroupsA / kClusterN : kGroupsA;
constexpr int kSliceRowsA = kSliceGroupsOfA ? BLOCK_K : BLOCK_K / kClusterN;
//@end

//@section exact-groups
constexpr int kColumns = BLOCK_N % 64 == 0 ? 64 : BLOCK_N % 32 == 0 ? 32 : 16;  // width of an MN-major column group
constexpr int kSwizzle = 2 * kColumns;
constexpr int kColumnGroups = BLOCK_N / kColumns;
//@section whole-groups
constexpr int kColumns = 64;  // width of an MN-major column group; the last one has columns of the next tile, too
constexpr int kSwizzle = 2 * kColumns;
constexpr int kColumnGroups = (BLOCK_N + kColumns - 1) / kColumns;
constexpr int kBoxColumns = BLOCK_N % 32 == 0 ? 32 : 16;  // width of a store box
constexpr int kBoxSwizzle = 2 * kBoxColumns;
//@section padded
constexpr int kColumns = kStoredN % 64 == 0 ? 64 : kStoredN % 32 == 0 ? 32 : 16;  // width of an MN-major column group
constexpr int kSwizzle = 2 * kColumns;
constexpr int kColumnGroups = kStoredN / kColumns;
//@section padded-boxes
constexpr int kBoxColumns = BLOCK_N % 64 == 0 ? 64 : BLOCK_N % 32 == 0 ? 32 : 16;  // width of a store box
constexpr int kBoxSwizzle = 2 * kBoxColumns;
//@section gated-upright-whole
constexpr int kBoxColumns = kStoreColumns;
constexpr int kBoxSwizzle = 2 * kBoxColumns;
//@end
constexpr bool kSliceColumns = kColumnGroups % kClusterM == 0;  // how multicast slices an MN-major B: by columns, else by K
constexpr int kSliceGroups = kSliceColumns ? kColumnGroups / kClusterM : kColumnGroups;
constexpr int kSliceRows = kSliceColumns ? BLOCK_K : BLOCK_K / kClusterM;

constexpr int kBytesA = BLOCK_M * BLOCK_K * 2;
//@section exact-groups
constexpr int kBytesB = BLOCK_N * BLOCK_K * 2;
//@section whole-groups
constexpr int kBytesB = kColumnGroups * kColumns * BLOCK_K * 2;
//@section padded
constexpr int kBytesB = kStoredN * BLOCK_K * 2;
//@section expects-loaded
constexpr int kLoadedBytes = kBytesA + (kRowMajorB ? kStoredN : kClusterM * kSliceN) * BLOCK_K * 2;  // of a stage
//@end
//@section single-rows
constexpr int kStageBytes = kBytesA + kBytesB;
//@section paired-rows
// What a row of odd number has behind the tile lies behind A and B: 16 bytes of each such row.
//@section paired-row-major-a
constexpr int kRowsA = BLOCK_M;
//@section paired-column-major-a
constexpr int kRowsA = BLOCK_K;
//@section paired-rows
constexpr int kRowsB = kRowMajorB ? BLOCK_K : BLOCK_N;
constexpr int kRestA = kBytesA + kBytesB;
constexpr int kRestB = kRestA + (kPairsA ? 8 * kRowsA : 0);
constexpr int kStageBytes = kBytesA + kBytesB + kRestRoom;
constexpr int kRestsBytes = kRestB - kRestA + (kPairsB ? 8 * kRowsB : 0);
constexpr int kExpected = kBytesA + (kRowMajorB ? kStoredN : kClusterM * kSliceN) * BLOCK_K * 2 + kRestsBytes;  // of a stage
static_assert(kRestsBytes <= kRestRoom, "the rests fit behind the tiles");
//@end

//@section upright upright-whole upright-odd
// Stores leave through boxes of 16 rows, a warp's own. A CTA with one tile has them where the pipeline was, all at once.
constexpr bool kStoreInPlace = !kPersistent;
//@section upright
constexpr int kBoxes = BLOCK_N / kColumns;
//@section upright-whole-of-all
constexpr int kBoxes = BLOCK_N / kBoxColumns;
//@section gated-upright-whole
constexpr int kBoxes = kColumnsOfD / kBoxColumns;
//@section upright-odd-of-all
constexpr int kBoxes = BLOCK_N / kStoreColumns;
//@section gated-upright-odd
constexpr int kBoxes = kColumnsOfD / kStoreColumns;
//@section upright upright-whole upright-odd
constexpr int kStoreBuffers = kStoreInPlace ? kAtoms * kBoxes : kStoreBoxes;
//@section upright
constexpr int kBoxBytes = 16 * kSwizzle;
//@section upright-whole
constexpr int kBoxBytes = 16 * kBoxSwizzle;
//@section upright-odd
constexpr int kBoxBytes = 16 * 2 * kStoreColumns;
//@section upright upright-whole upright-odd
constexpr int kStoreBytes = kStoreBuffers * kBoxBytes;  // of one warp
constexpr int kBarriers = kStages * kStageBytes + (kTmaStore && !kStoreInPlace ? 4 * kConsumers * kStoreBytes : 0);
//@section turned
// D leaves through boxes of kBoxRows rows and 64 columns, a warpgroup's own. A CTA with one tile has them where the pipeline was,
// all at once.
constexpr bool kStoreInPlace = !kPersistent;
constexpr int kBoxes = BLOCK_N / kBoxRows;
constexpr int kStoreBuffers = kStoreInPlace ? kAtoms * kBoxes : kStoreBoxes;
constexpr int kBoxBytes = kBoxRows * 128;
constexpr int kStoreBytes = kStoreBuffers * kBoxBytes;  // of one warpgroup
constexpr int kBarriers = kStages * kStageBytes + (kStoreInPlace ? 0 : kConsumers * kStoreBytes);
//@end
constexpr int kRegisters = wgmma_shared<Element, Register, BLOCK_N, kRowMajorB>::kRegisters;
//@section pull
constexpr int kPartialPitch = BLOCK_N + 8;  // floats; the 8 keep fragment writes of 4 rows in different banks
//@end

//@section paired-rows
constexpr int kShifted = kBarriers + 16 * kStages + 16;  // one barrier a stage, behind which rows of odd number are in place
//@section push
// Sums are pushed to the CTA along K that owns them. 8 columns of a warp's 16 rows are a unit: 16 bytes of sums in each lane.
// The units of a warp are divided into kClusterK chunks, one for each CTA.
constexpr int kWarps = 4 * kConsumers;
constexpr int kUnits = kAtoms * BLOCK_N / 8;
constexpr int kChunk = (kUnits + kClusterK - 1) / kClusterK;  // units of the largest chunk
constexpr int kUnitBytes = 32 * 16;
constexpr int kSourceBytes = kWarps * kChunk * kUnitBytes;  // of one sender
constexpr int kSummed = kBarriers + 16 * kStages + 8;       // barrier of the sums that a CTA receives
//@section push-single-rows
constexpr int kReceived = kReceiveApart ? kSummed + 8 : 0;  // else where the pipeline was
//@section push-paired-rows
constexpr int kReceived = kReceiveApart ? kShifted + (kStages + 1) / 2 * 16 : 0;  // else where the pipeline was
//@end
static_assert(kStageBytes % 1024 == 0, "stages start on 1024 bytes, the period of the 128-byte swizzle");
//@section exact-groups whole-groups
static_assert(BLOCK_M / kClusterN % 8 == 0 && BLOCK_N / kClusterM % 8 == 0, "multicast slices are whole 8-row swizzle groups");
//@section gated-upright
static_assert(kColumnsOfD % (8 * kClusterM) == 0, "multicast slices of each half are whole 8-row swizzle groups");
//@section gated-turned
static_assert(kRowsOfD / kClusterN % 8 == 0, "multicast slices of each half are whole 8-row swizzle groups");
//@section padded
static_assert(BLOCK_M / kClusterN % 8 == 0 && kSliceN % 8 == 0, "multicast slices are whole 8-row swizzle groups");
static_assert(BLOCK_N <= kClusterM * kSliceN && kClusterM * kSliceN <= kStoredN, "slices are the tile, and fit in a stage");
//@end
//@section column-major-a
static_assert(kSliceRowsA % 8 == 0, "multicast slices of A are whole 8-row swizzle groups");
//@end
static_assert(!kPingpong || (kPersistent && kSplits == 1), "warpgroups alternate over the tiles of a persistent CTA, and share no sums");
static_assert(kClusterK == 1 || !kPersistent, "partials take the place of the pipeline, so each CTA has one tile");
//@section pull
static_assert(kClusterK == 1 || BLOCK_M * kPartialPitch * 4 <= kStages * kStageBytes, "partials fit where the pipeline was");
//@section push
static_assert(kReceiveApart || kClusterK * kSourceBytes <= kStages * kStageBytes, "the sums fit where the pipeline was");
static_assert(kUnits >= kClusterK, "each CTA of a K-cluster owns sums of every warp");
//@end
//@section upright upright-whole upright-odd
static_assert(!kTmaStore || !kStoreInPlace || 4 * kConsumers * kStoreBytes <= kStages * kStageBytes, "the tile fits where the pipeline was");
//@section turned-whole
static_assert(!kStoreInPlace || kConsumers * kStoreBytes <= kStages * kStageBytes, "the tile fits where the pipeline was");
//@section turned-parts
static_assert(!kTmaStore || !kStoreInPlace || kConsumers * kStoreBytes <= kStages * kStageBytes, "the tile fits where the pipeline was");
//@section turned
static_assert(BLOCK_N % kBoxRows == 0 && kBoxRows % 8 == 0, "boxes are whole 8-row swizzle groups");
//@section turned-whole
static_assert(kSplits == 1 && kClusterK == 1, "D is stored by the CTA that multiplied the whole tile");
//@end
//@section pull
static_assert(BLOCK_M % kClusterK == 0, "each CTA of a K-cluster sums whole rows");
//@end

// Named barriers; the one of a warpgroup's turn is kTurn plus its number.
constexpr int kAllConsumers = 1;
constexpr int kTurn = 2;
//@section turned-whole
constexpr int kStoring = 6;  // plus the number of the warpgroup that stores
//@section turned-parts
[[maybe_unused]] constexpr int kStoring = 6;  // plus the number of the warpgroup that stores
//@end

using Accumulators = Register[kAtoms][kRegisters];

// A CTA's place in the cluster.
struct Rank {
  int m, n, k;

  __device__ static Rank of(unsigned rank) {
    return {int(rank % kClusterM), int(rank / kClusterM % kClusterN), int(rank / (kClusterM * kClusterN))};
  }
  __device__ unsigned peer(int peer_m, int peer_n, int peer_k) const {
    return (peer_k * kClusterN + peer_n) * kClusterM + peer_m;
  }
};

// One unit of work: an output tile and the K blocks [begin, end) of it that this CTA multiplies.
struct Unit {
  int row, column;  // of the tile, in elements
  int begin, end;   // in K blocks
  int split;
  int slot;  // number of the (tile, CTA of the cluster), for the workspace
};

struct Scheduler {
  int tiles_m, tiles_n, k_blocks, rank_index;
  Rank rank;

  __device__ Scheduler(int m, int n, int k, unsigned cta_rank)
//@section one-product
      : tiles_m((m + kClusterM * BLOCK_M - 1) / (kClusterM * BLOCK_M)),
        tiles_n((n + kClusterN * BLOCK_N - 1) / (kClusterN * BLOCK_N)),
//@section gated
      : tiles_m((m + kClusterM * kRowsOfD - 1) / (kClusterM * kRowsOfD)),
        tiles_n((n + kClusterN * kColumnsOfD - 1) / (kClusterN * kColumnsOfD)),
//@end
        k_blocks((k + BLOCK_K - 1) / BLOCK_K),
        rank_index(cta_rank),
        rank(Rank::of(cta_rank)) {}

  __device__ int first() const { return blockIdx.x / kClusterSize; }
  __device__ int step() const { return gridDim.x / kClusterSize; }
//@section all-split
  __device__ int units() const { return kPersistent ? tiles_m * tiles_n * kSplits : first() + 1; }

  __device__ Unit unit(int index) const {
    const int tile = index / kSplits, split = index % kSplits;
//@section tail-split
  // Tiles that are multiplied whole, in turns that occupy the whole grid. Only those that are left are split.
  __device__ int whole() const { return tiles_m * tiles_n / step() * step(); }
  __device__ int units() const { return whole() + (tiles_m * tiles_n - whole()) * kSplits; }

  // `split` is negative in a whole tile.
  __device__ Unit unit(int index) const {
    const int left = index - whole(), split = left < 0 ? -1 : left % kSplits;
    const int tile = left < 0 ? index : whole() + left / kSplits;
//@section by-rows
    const TileIndex at = grouped_raster<kGroup>(tile, tiles_m, tiles_n);
//@section ordered
    const TileIndex at = ordered_raster<kGroup, kByColumns, kSnake>(tile, tiles_m, tiles_n);
//@section all-split
    constexpr int kParts = kSplits * kClusterK;
    const int part = split * kClusterK + rank.k;
//@section all-split-one-product
    return {(at.m * kClusterM + rank.m) * BLOCK_M, (at.n * kClusterN + rank.n) * BLOCK_N,
            part * k_blocks / kParts,              (part + 1) * k_blocks / kParts,
            split,                                 tile * kClusterSize + rank_index};
//@section gated
    return {(at.m * kClusterM + rank.m) * kRowsOfD, (at.n * kClusterN + rank.n) * kColumnsOfD,
            part * k_blocks / kParts,               (part + 1) * k_blocks / kParts,
            split,                                  tile * kClusterSize + rank_index};
//@section tail-split
    return {(at.m * kClusterM + rank.m) * BLOCK_M,      (at.n * kClusterN + rank.n) * BLOCK_N,
            split < 0 ? 0 : split * k_blocks / kSplits, split < 0 ? k_blocks : (split + 1) * k_blocks / kSplits,
            split,                                      (tile - whole()) * kClusterSize + rank_index};
//@end
  }
};

// Position in the ring of stages; the parity flips on every wrap.
struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int stages) {
    parity ^= (stage + stages) / kStages & 1;
    stage = (stage + stages) % kStages;
  }
};

__device__ __forceinline__ unsigned full_barrier(unsigned smem, int stage) { return smem + kBarriers + 16 * stage; }
__device__ __forceinline__ unsigned empty_barrier(unsigned smem, int stage) { return smem + kBarriers + 16 * stage + 8; }
//@section paired-rows
__device__ __forceinline__ unsigned shifted_barrier(unsigned smem, int stage) { return smem + kShifted + 8 * stage; }
//@end

// ---- producer: one thread keeps the ring full --------------------------------------------------------------------------------
//@section plain-loads
__device__ __forceinline__ void load(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y, unsigned mask, bool many) {
  if (many) {
    tma_load_multicast(smem, map, barrier, x, y, static_cast<unsigned short>(mask));
  } else {
    tma_load(smem, map, barrier, x, y);
  }
}

//@section hinted-loads
template <int kEviction>
__device__ __forceinline__ void load(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y, unsigned mask, bool many) {
  if constexpr (kEviction > 0) {
    const unsigned long long policy = l2_policy<kEviction>();
    if (many) {
      tma_load_multicast(smem, map, barrier, x, y, static_cast<unsigned short>(mask), policy);
    } else {
      tma_load(smem, map, barrier, x, y, policy);
    }
  } else if (many) {
    tma_load_multicast(smem, map, barrier, x, y, static_cast<unsigned short>(mask));
  } else {
    tma_load(smem, map, barrier, x, y);
  }
}

//@section paired-loads
template <bool kPairs>
__device__ __forceinline__ void load(unsigned smem, const TensorMap& map, unsigned barrier, int x, int y, unsigned mask, bool many) {
  if constexpr (kPairs) {
    if (many) {
      tma_load_multicast_3d(smem, map, barrier, x, 0, y / 2, static_cast<unsigned short>(mask));
    } else {
      tma_load_3d(smem, map, barrier, x, 0, y / 2);
    }
  } else if (many) {
    tma_load_multicast(smem, map, barrier, x, y, static_cast<unsigned short>(mask));
  } else {
    tma_load(smem, map, barrier, x, y);
  }
}

//@end
__device__ __forceinline__ void load_a(unsigned stage, const TensorMap& map, unsigned barrier, int row, int k, const Rank& rank) {
//@section row-major-a-alone
  constexpr int kRows = BLOCK_M / kClusterN;  // this CTA's slice, sent to every CTA of its row
//@section gated-turned
  constexpr int kRows = kRowsOfD / kClusterN;  // this CTA's slice of a half, sent to every CTA of its row
//@section column-major-a
  // This CTA's slice, sent to every CTA of its row.
  const int first = kSliceGroupsOfA ? rank.n * kSliceGroupsA : 0;
  const int k_row = kSliceGroupsOfA ? 0 : rank.n * kSliceRowsA;
//@end
  unsigned mask = 0;
#pragma unroll
  for (int peer = 0; peer < kClusterN; ++peer) mask |= 1u << rank.peer(rank.m, peer, rank.k);
#pragma unroll
//@section row-major-a
  for (int panel = 0; panel < kPanels; ++panel) {
    const unsigned target = stage + (panel * BLOCK_M + rank.n * kRows) * 128;
//@section plain-loads-row-major-a
    load(target, map, barrier, k + 64 * panel, row + rank.n * kRows, mask, kClusterN > 1);
//@section hinted-loads-row-major-a
    load<kEvictionA>(target, map, barrier, k + 64 * panel, row + rank.n * kRows, mask, kClusterN > 1);
//@section paired-loads-row-major-a
    load<kPairsA>(target, map, barrier, k + 64 * panel, row + rank.n * kRows, mask, kClusterN > 1);
//@section column-major-a
  for (int group = 0; group < kSliceGroupsA; ++group) {
    const unsigned target = stage + ((first + group) * BLOCK_K + k_row) * 128;
//@section plain-loads-column-major-a
    load(target, map, barrier, row + (first + group) * 64, k + k_row, mask, kClusterN > 1);
//@section hinted-loads-column-major-a
    load<kEvictionA>(target, map, barrier, row + (first + group) * 64, k + k_row, mask, kClusterN > 1);
//@section paired-loads-column-major-a
    load<kPairsA>(target, map, barrier, row + (first + group) * 64, k + k_row, mask, kClusterN > 1);
//@end
  }
}

__device__ __forceinline__ void load_b(unsigned stage, const TensorMap& map, unsigned barrier, int column, int k, const Rank& rank) {
  unsigned mask = 0;
#pragma unroll
  for (int peer = 0; peer < kClusterM; ++peer) mask |= 1u << rank.peer(peer, rank.n, rank.k);
  if constexpr (kRowMajorB) {
    const int first = kSliceColumns ? rank.m * kSliceGroups : 0;
    const int k_row = kSliceColumns ? 0 : rank.m * kSliceRows;
#pragma unroll
    for (int group = 0; group < kSliceGroups; ++group) {
      const unsigned target = stage + kBytesA + ((first + group) * BLOCK_K + k_row) * kSwizzle;
//@section plain-loads
      load(target, map, barrier, column + (first + group) * kColumns, k + k_row, mask, kClusterM > 1);
//@section hinted-loads
      load<kEvictionB>(target, map, barrier, column + (first + group) * kColumns, k + k_row, mask, kClusterM > 1);
//@section paired-loads
      load<kPairsB>(target, map, barrier, column + (first + group) * kColumns, k + k_row, mask, kClusterM > 1);
//@end
    }
  } else {
//@section b-alone
    constexpr int kRows = BLOCK_N / kClusterM;
//@section gated-upright
    constexpr int kRows = kColumnsOfD / kClusterM;  // this CTA's slice of a half
//@section padded
    constexpr int kRows = kSliceN;
//@end
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
//@section exact-groups whole-groups
      const unsigned target = stage + kBytesA + (panel * BLOCK_N + rank.m * kRows) * 128;
//@section padded
      const unsigned target = stage + kBytesA + (panel * kStoredN + rank.m * kRows) * 128;
//@section plain-loads
      load(target, map, barrier, k + 64 * panel, column + rank.m * kRows, mask, kClusterM > 1);
//@section hinted-loads
      load<kEvictionB>(target, map, barrier, k + 64 * panel, column + rank.m * kRows, mask, kClusterM > 1);
//@section paired-loads
      load<kPairsB>(target, map, barrier, k + 64 * panel, column + rank.m * kRows, mask, kClusterM > 1);
//@end
    }
  }
}

//@section paired-rows
// Each CTA loads them for itself. `map`: of the rows of odd number alone.
template <bool kKMajor, int kWidth>
__device__ __forceinline__ void load_rest(unsigned to, const TensorMap& map, unsigned barrier, int first, int k) {
  if constexpr (kKMajor) {
    tma_load(to, map, barrier, k + BLOCK_K, first / 2);
  } else {
    tma_load(to, map, barrier, first + kWidth, k / 2);
  }
}

__device__ __forceinline__ void produce(unsigned smem, const TensorMap& map_a, const TensorMap& map_b, const TensorMap& rest_a,
                                        const TensorMap& rest_b, const Scheduler& scheduler) {
//@section single-rows-one-product
__device__ __forceinline__ void produce(unsigned smem, const TensorMap& map_a, const TensorMap& map_b, const Scheduler& scheduler) {
//@section gated
__device__ __forceinline__ void produce(unsigned smem, const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_up,
                                        const Scheduler& scheduler) {
//@end
  Ring ring;
  for (int index = scheduler.first(); index < scheduler.units(); index += scheduler.step()) {
    const Unit unit = scheduler.unit(index);
    for (int block = unit.begin; block < unit.end; ++block, ring.advance()) {
      mbarrier_wait(empty_barrier(smem, ring.stage), ring.parity ^ 1);
      const unsigned full = full_barrier(smem, ring.stage);
//@section expects-stage
      mbarrier_arrive_expect(full, kStageBytes);
//@section expects-loaded
      mbarrier_arrive_expect(full, kLoadedBytes);
//@section paired-rows
      mbarrier_arrive_expect(full, kExpected);
//@end
      const unsigned stage = smem + ring.stage * kStageBytes;
      load_a(stage, map_a, full, unit.row, block * BLOCK_K, scheduler.rank);
      load_b(stage, map_b, full, unit.column, block * BLOCK_K, scheduler.rank);
//@section gated-upright
      load_b(stage + kColumnsOfD * 128, map_up, full, unit.column, block * BLOCK_K, scheduler.rank);
//@section gated-turned
      load_a(stage + kRowsOfD * 128, map_up, full, unit.row, block * BLOCK_K, scheduler.rank);
//@section paired-row-major-a
      if constexpr (kPairsA) load_rest<true, BLOCK_M>(stage + kRestA, rest_a, full, unit.row, block * BLOCK_K);
//@section paired-column-major-a
      if constexpr (kPairsA) load_rest<false, BLOCK_M>(stage + kRestA, rest_a, full, unit.row, block * BLOCK_K);
//@section paired-rows
      if constexpr (kPairsB) load_rest<!kRowMajorB, kStoredN>(stage + kRestB, rest_b, full, unit.column, block * BLOCK_K);
//@end
    }
  }
//@section drains
  // A CTA must not end while arrivals of its peers are on their way to it. Every stage is free again once the last has come. A
  // barrier of the cluster says so only if it releases, and then it waits for the stores of D too.
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage, ring.advance()) mbarrier_wait(empty_barrier(smem, ring.stage), ring.parity ^ 1);
//@end
}

//@section paired-rows
// ---- shifters: three warps move the rows of odd number, which lie 4 columns to the right in a stage -------------------------
// 8 aligned bytes.
__device__ __forceinline__ uint2 load_four(unsigned address) {
  uint2 four;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(four.x), "=r"(four.y) : "r"(address) : "memory");
  return four;
}
__device__ __forceinline__ void store_eight(unsigned address, uint2 low, uint2 high) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(low.x), "r"(low.y), "r"(high.x), "r"(high.y)
               : "memory");
}

// Panels of kWidth columns lie kPanelBytes apart, each of kRows rows. A warp moves the same rows of all of them, from left to right,
// so that it reads the first columns of a panel before it writes them. Those behind the last panel lie at `rest`, 16 bytes a row.
template <int kWidth, int kPanelsInAll, int kRows, int kPanelBytes>
__device__ __forceinline__ void shift_rows(unsigned tile, unsigned rest) {
  constexpr int kUnits = kWidth / 8, kTogether = 32 / kUnits;  // units of 16 bytes in a row; pairs of rows that a warp moves at once
  constexpr int kGroups = kRows / 2 / kTogether;               // of such pairs, each 1024 bytes: whole periods of the swizzle
  constexpr int kInFlight = 4;                                 // groups; more need more registers than a producer keeps
  static_assert(kRows / 2 % kTogether == 0 && kPanelBytes % 1024 == 0, "warps move whole groups of rows");
  const int lane = threadIdx.x % 32, unit = lane % kUnits, pair = lane / kUnits;
  const bool last = unit == kUnits - 1;
  const unsigned own = swizzled<kWidth>(2 * pair + 1, unit * 8);
  const unsigned next = last ? kPanelBytes + swizzled<kWidth>(2 * pair + 1, 0) : swizzled<kWidth>(2 * pair + 1, unit * 8 + 8);
#pragma unroll 1
  for (int begin = threadIdx.x / 32 - kConsumerThreads / 32 - 1; begin < kGroups; begin += kShifters * kInFlight) {
#pragma unroll 1
    for (int panel = 0; panel < kPanelsInAll; ++panel) {
      const unsigned here = tile + panel * kPanelBytes;
      const bool ends = last && panel + 1 == kPanelsInAll;
      uint2 low[kInFlight], high[kInFlight];
#pragma unroll
      for (int index = 0; index < kInFlight; ++index) {
        const int group = begin + index * kShifters;
        if (group >= kGroups) continue;
        low[index] = load_four(here + group * 1024 + own + 8);
        high[index] = load_four(ends ? rest + (group * kTogether + pair) * 16 : here + group * 1024 + next);
      }
      __syncwarp();  // a lane writes what its neighbour has read
#pragma unroll
      for (int index = 0; index < kInFlight; ++index) {
        const int group = begin + index * kShifters;
        if (group < kGroups) store_eight(here + group * 1024 + own, low[index], high[index]);
      }
    }
  }
}

// Rows of even number have the first 4 columns of the next one behind K. `column`: of K in the tile, whose panels are 64 wide.
template <int kRows, int kPanelBytes>
__device__ __forceinline__ void clear_behind(unsigned tile, int column) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumerThreads - 32;
  for (int row = 2 * thread; row < kRows; row += 2 * 32 * kShifters) {
    const unsigned address = tile + column / 64 * kPanelBytes + swizzled<64>(row, column % 64);
    asm volatile("st.shared.v2.u32 [%0], {%1, %1};" ::"r"(address), "r"(0) : "memory");
  }
}

__device__ __forceinline__ void shift(unsigned smem, const Scheduler& scheduler, int k) {
  Ring ring;
  for (int index = scheduler.first(); index < scheduler.units(); index += scheduler.step()) {
    const Unit unit = scheduler.unit(index);
    for (int block = unit.begin; block < unit.end; ++block, ring.advance()) {
      const unsigned stage = smem + ring.stage * kStageBytes;
      const bool ends = block + 1 == scheduler.k_blocks;
      mbarrier_wait(full_barrier(smem, ring.stage), ring.parity);
//@section paired-row-major-a
      if constexpr (kPairsA) {
        shift_rows<64, kPanels, BLOCK_M, BLOCK_M * 128>(stage, stage + kRestA);
        if (ends) clear_behind<BLOCK_M, BLOCK_M * 128>(stage, k - block * BLOCK_K);
      }
//@section paired-column-major-a
      if constexpr (kPairsA) shift_rows<64, kGroupsA, BLOCK_K, BLOCK_K * 128>(stage, stage + kRestA);
//@section paired-rows
      if constexpr (kPairsB && kRowMajorB) {
        shift_rows<kColumns, kColumnGroups, BLOCK_K, BLOCK_K * kSwizzle>(stage + kBytesA, stage + kRestB);
      } else if constexpr (kPairsB) {
        shift_rows<64, kPanels, BLOCK_N, kStoredN * 128>(stage + kBytesA, stage + kRestB);
        if (ends) clear_behind<BLOCK_N, kStoredN * 128>(stage + kBytesA, k - block * BLOCK_K);
      }
      fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shifted_barrier(smem, ring.stage));
    }
  }
}

//@end
// ---- consumers: a warpgroup multiplies its rows of the tile, or with ping-pong every other tile ---------------------------------------------------------------
// First row of the tile that this warpgroup multiplies.
//@section atoms-together
__device__ __forceinline__ int tile_rows() { return kPingpong ? 0 : static_cast<int>(threadIdx.x) / kWarpgroup * kAtoms * 64; }
//@section gated-turned
__device__ __forceinline__ int tile_rows() { return kPingpong ? 0 : static_cast<int>(threadIdx.x) / kWarpgroup * 64; }
//@end

// Ping-pong: a warpgroup waits until the one before it has taken its last stage, and then hands on the turn. Without this it
// could look at a barrier of the ring a whole phase early, where the parity it waits for is that of the phase before.
__device__ __forceinline__ void await_turn() {
  if constexpr (kPingpong) named_barrier(kTurn + threadIdx.x / kWarpgroup, 2 * kWarpgroup);
}
__device__ __forceinline__ void pass_turn() {
  if constexpr (kPingpong) named_barrier_arrive(kTurn + (threadIdx.x / kWarpgroup + 1) % kConsumers, 2 * kWarpgroup);
}

// Tells every CTA that writes into this stage that this warp has read it; the lanes share the peers.
__device__ __forceinline__ void release(unsigned smem, int stage, const Rank& rank) {
  const int lane = threadIdx.x % 32;
  const unsigned barrier = empty_barrier(smem, stage);
  if constexpr (kClusterM * kClusterN == 1) {
    if (lane == 0) mbarrier_arrive(barrier);
  } else {
    if (lane < kClusterM) mbarrier_arrive_remote(barrier, rank.peer(lane, rank.n, rank.k));
    if (lane >= kClusterM && lane < kClusterM + kClusterN && lane - kClusterM != rank.n) {
      mbarrier_arrive_remote(barrier, rank.peer(rank.m, lane - kClusterM, rank.k));
    }
  }
}

__device__ __forceinline__ void multiply_stage(Accumulators& acc, unsigned long long a, unsigned long long b, bool accumulate) {
#pragma unroll
  for (int step = 0; step < BLOCK_K / 16; ++step) {
//@section row-major-a
    const unsigned panel = step / 4, within = step % 4 * 32;
//@section row-major-a-exact
    const unsigned offset_b = kRowMajorB ? step * 16 * kSwizzle : panel * BLOCK_N * 128 + within;
//@section column-major-a-exact
    const unsigned offset_b = kRowMajorB ? step * 16 * kSwizzle : step / 4 * BLOCK_N * 128 + step % 4 * 32;
//@section padded
    const unsigned offset_b = kRowMajorB ? step * 16 * kSwizzle : step / 4 * kStoredN * 128 + step % 4 * 32;
//@end
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
//@section row-major-a-alone
      const unsigned offset_a = (panel * BLOCK_M + atom * 64) * 128 + within;
//@section gated-turned
      const unsigned offset_a = (panel * BLOCK_M + atom * kRowsOfD) * 128 + within;
//@section row-major-a
      wgmma_shared<Element, Register, BLOCK_N, kRowMajorB>::run(acc[atom], wgmma_advance(a, offset_a), wgmma_advance(b, offset_b),
                                                                step > 0 || accumulate);
//@section column-major-a
      const unsigned offset_a = (atom * BLOCK_K + step * 16) * 128;
      wgmma_shared<Element, Register, BLOCK_N, kRowMajorB, 1>::run(acc[atom], wgmma_advance(a, offset_a), wgmma_advance(b, offset_b),
                                                                   step > 0 || accumulate);
//@end
    }
  }
}

//@section self-fed
// By the first warp: a block of K goes into its stage.
__device__ __forceinline__ void load_block(unsigned smem, const TensorMap& map_a, const TensorMap& map_b, const Unit& unit, int stage,
                                           int block, const Rank& rank) {
  if (threadIdx.x == 0) {
    const unsigned full = full_barrier(smem, stage), to = smem + stage * kStageBytes;
    mbarrier_arrive_expect(full, kStageBytes);
    load_a(to, map_a, full, unit.row, block * BLOCK_K, rank);
    load_b(to, map_b, full, unit.column, block * BLOCK_K, rank);
  }
  __syncwarp();
}

__device__ __forceinline__ void multiply(Accumulators& acc, unsigned smem, const Unit& unit, Ring& ring, const Rank& rank,
                                         const TensorMap& map_a, const TensorMap& map_b) {
  const bool loads = threadIdx.x < 32;
  for (int block = 0; loads && block < kStages && block < unit.end; ++block) load_block(smem, map_a, map_b, unit, block, block, rank);
//@section fed-apart
__device__ __forceinline__ void multiply(Accumulators& acc, unsigned smem, const Unit& unit, Ring& ring, const Rank& rank) {
//@end
//@section row-major-a
  const unsigned long long a = wgmma_descriptor<128>(smem + tile_rows() * 128, 16, 1024);
//@section column-major-a
  const unsigned long long a = wgmma_descriptor<128>(smem + tile_rows() * BLOCK_K * 2, BLOCK_K * 128, 1024);
//@end
  const unsigned long long b = kRowMajorB ? wgmma_descriptor<kSwizzle>(smem + kBytesA, BLOCK_K * kSwizzle, 8 * kSwizzle)
                                          : wgmma_descriptor<128>(smem + kBytesA, 16, 1024);
  int previous = ring.stage;
  await_turn();
  for (int block = unit.begin; block < unit.end; ++block, ring.advance()) {
//@section single-rows
    mbarrier_wait(full_barrier(smem, ring.stage), ring.parity);
//@section paired-rows
    mbarrier_wait(shifted_barrier(smem, ring.stage), ring.parity);
//@end
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) wgmma_pin(acc[atom]);
    wgmma_fence();
//@section no-bias
    multiply_stage(acc, wgmma_advance(a, ring.stage * kStageBytes), wgmma_advance(b, ring.stage * kStageBytes), block > unit.begin);
//@section bias
    multiply_stage(acc, wgmma_advance(a, ring.stage * kStageBytes), wgmma_advance(b, ring.stage * kStageBytes), true);
//@end
    wgmma_commit();
    // One group stays in flight, so that the tensor cores never wait for the barrier of the next stage.
    wgmma_wait<1>();
    if (block > unit.begin) release(smem, previous, rank);
//@section self-fed
    if (const int next = block + kStages - kBehind; loads && block >= kBehind && next < unit.end) {
      const bool wrapped = ring.stage < kBehind;
      const int stage = wrapped ? ring.stage + kStages - kBehind : ring.stage - kBehind;
      if (threadIdx.x == 0) mbarrier_wait(empty_barrier(smem, stage), ring.parity ^ wrapped);
      load_block(smem, map_a, map_b, unit, stage, next, rank);
    }
//@end
    previous = ring.stage;
  }
  pass_turn();
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) wgmma_pin(acc[atom]);
  wgmma_wait<0>();
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) wgmma_pin(acc[atom]);
  release(smem, previous, rank);
}

//@section bias
// The value in a register of its own, as each of wgmma's accumulators must be: shared ones would be copied between its steps.
__device__ __forceinline__ float in_register(float value) {
  float held;
  asm volatile("mov.f32 %0, %1;" : "=f"(held) : "f"(value));
  return held;
}

//@section bias-of-columns
// What the sums begin with, for every part of K.
__device__ __forceinline__ void begin_sums(Accumulators& acc, const Unit& unit, const Element* bias, int n) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int group = 0; group < BLOCK_N / 8; ++group) {
    const int column = unit.column + group * 8 + lane % 4 * 2;
    const float2 pair = unit.begin == 0 ? bias_of_pair(bias, column, n) : make_float2(0, 0);
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      float(&d)[BLOCK_N / 2] = acc[atom];
      d[4 * group] = in_register(pair.x), d[4 * group + 2] = in_register(pair.x);
      d[4 * group + 1] = in_register(pair.y), d[4 * group + 3] = in_register(pair.y);
    }
  }
}

//@section bias-of-rows
// What the sums begin with, for every part of K. Rows here are columns of D.
__device__ __forceinline__ void begin_sums(Accumulators& acc, const Unit& unit, const Element* bias, int m) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
    const int row = unit.row + tile_rows() + atom * 64 + thread / 32 * 16 + lane / 4;
    const float upper = unit.begin == 0 ? bias_of(bias, row, m) : 0, lower = unit.begin == 0 ? bias_of(bias, row + 8, m) : 0;
    float(&d)[BLOCK_N / 2] = acc[atom];
#pragma unroll
    for (int group = 0; group < BLOCK_N / 8; ++group) {
      d[4 * group] = in_register(upper), d[4 * group + 1] = in_register(upper);
      d[4 * group + 2] = in_register(lower), d[4 * group + 3] = in_register(lower);
    }
  }
}

//@end
// ---- fragments ----------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ unsigned pack(float low, float high, __half) {
//@section activation-of-sums
  low = Activation::of(low), high = Activation::of(high);
//@end
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pack(float low, float high, __nv_bfloat16) {
//@section activation-of-sums
  low = Activation::of(low), high = Activation::of(high);
//@end
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

//@section gated-turned
// The sums of the same outputs: of B, and of `up`.
struct Halves {
  const float (&gate)[BLOCK_N / 2];
  const float (&up)[BLOCK_N / 2];
};

//@end
// Two neighbouring outputs of column group `group` (8 columns), upper row (half 0) or 8 rows below (half 1).
//@section one-product
__device__ __forceinline__ unsigned packed_pair(const float (&d)[BLOCK_N / 2], int group, int half) {
  return pack(d[4 * group + 2 * half], d[4 * group + 2 * half + 1], Element());
}
//@section gated-upright
// The sums of `up` lie behind those of B.
__device__ __forceinline__ unsigned packed_pair(const float (&d)[BLOCK_N / 2], int group, int half) {
  const int at = 4 * group + 2 * half, up = at + BLOCK_N / 4;
  return pack(Activation::of(d[at]) * d[up], Activation::of(d[at + 1]) * d[up + 1], Element());
}
//@section gated-turned
__device__ __forceinline__ unsigned packed_pair(const Halves& d, int group, int half) {
  const int at = 4 * group + 2 * half;
  return pack(Activation::of(d.gate[at]) * d.up[at], Activation::of(d.gate[at + 1]) * d.up[at + 1], Element());
}
//@end
__device__ __forceinline__ unsigned packed_pair(const unsigned (&d)[BLOCK_N / 4], int group, int half) { return d[2 * group + half]; }

// The four outputs of column group `group` in float: two of the upper row, two of the row 8 below.
__device__ __forceinline__ float4 quad(const float (&d)[BLOCK_N / 2], int group) {
  return make_float4(d[4 * group], d[4 * group + 1], d[4 * group + 2], d[4 * group + 3]);
}
__device__ __forceinline__ float4 quad(const unsigned (&d)[BLOCK_N / 4], int group) {
  const float2 upper = __half22float2(*reinterpret_cast<const __half2*>(&d[2 * group]));
  const float2 lower = __half22float2(*reinterpret_cast<const __half2*>(&d[2 * group + 1]));
  return make_float4(upper.x, upper.y, lower.x, lower.y);
}

// ---- epilogue -----------------------------------------------------------------------------------------------------------------
//@section upright-odd
// A box of a warp's 16 rows. Its rows have an odd number of 16 bytes, so that stmatrix needs no swizzle to spread 8 of them over
// all banks.
template <typename Fragment>
__device__ __forceinline__ void fill_box(const Fragment& d, unsigned buffer, int box) {
  constexpr int kGroups = kStoreColumns / 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int index = 0; index < kGroups; index += 2) {
    const int group = box * kGroups + index;
    const unsigned address = buffer + lane % 16 * 2 * kStoreColumns + (index + lane / 16) * 16;
    if (index + 1 < kGroups) {
      stmatrix_x4(address, packed_pair(d, group, 0), packed_pair(d, group, 1), packed_pair(d, group + 1, 0),
                  packed_pair(d, group + 1, 1));
    } else {
      stmatrix_x2(address, packed_pair(d, group, 0), packed_pair(d, group, 1));
    }
  }
}

//@section unaligned-d
__device__ __forceinline__ unsigned load_word(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void store_element(Element* to, unsigned half) {
  *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(half);
}

// Stores kWidth neighbouring elements of a row, of which every lane of a group has a word, as whole words of global memory. Where
// the row begins in the middle of one, the first element and the last go alone. Every lane calls it. `left`: elements to store.
template <int kWidth>
__device__ __forceinline__ void store_row(Element* line, long long at, unsigned word, int left) {
  constexpr int kLanes = kWidth / 2;
  const int lane = threadIdx.x % kLanes;
  const unsigned next = __shfl_down_sync(0xffffffff, word, 1, kLanes);
  const bool odd = at % 2;
  Element* to = line + at + 2 * lane;
  if (odd) {
    if (lane == 0 && left > 0) store_element(to, word & 0xffff);
    word = lane == kLanes - 1 ? word >> 16 : __byte_perm(word, next, 0x5432);
    ++to;
  }
  const int mine = left - 2 * lane - odd, held = odd && lane == kLanes - 1 ? 1 : 2;
  if (mine >= 2 && held == 2) {
    *reinterpret_cast<unsigned*>(to) = word;
  } else if (mine >= 1) {
    store_element(to, word & 0xffff);
  }
}

//@section upright-odd-aligned-d
// Each warp sends its own 16 rows, one box at a time, and waits for no other warp.
//@section upright-aligned-d upright-whole-aligned-d
// Each warp sends its own 16 rows, one swizzled box at a time, and waits for no other warp.
//@section upright-odd-unaligned-d
// Each warp turns its own 16 rows from fragments into rows, one box at a time, and waits for no other warp.
//@section upright-unaligned-d upright-whole-unaligned-d
// Each warp turns its own 16 rows from fragments into rows, one swizzled box at a time, and waits for no other warp.
//@section upright upright-whole upright-odd
template <typename Fragment>
//@section upright-aligned-d upright-whole-aligned-d upright-odd-aligned-d
__device__ __forceinline__ void store_by_tma(const Fragment& d, unsigned buffers, const TensorMap& map, int row, int column, int& turn) {
//@section upright-unaligned-d upright-whole-unaligned-d upright-odd-unaligned-d
__device__ __forceinline__ void store_in_words(const Fragment& d, unsigned buffers, Element* out, int row, int column, int m, int n,
                                               int& turn) {
//@section upright-whole
  constexpr int kColumns = kBoxColumns, kSwizzle = kBoxSwizzle;
//@section upright-odd-aligned-d
  constexpr int kColumns = kStoreColumns;
//@section upright-unaligned-d upright-whole-unaligned-d
  constexpr int kTogether = 64 / kColumns;  // rows that a warp stores at once
//@section upright upright-whole upright-odd
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const unsigned buffer = buffers + turn * kBoxBytes;
    if (++turn == kStoreBuffers) turn = 0;
//@section upright-aligned-d upright-whole-aligned-d upright-odd-aligned-d
    if constexpr (!kStoreInPlace) {
      if (lane == 0) tma_store_wait_read<kStoreBuffers - 1>();
      __syncwarp();
    }
//@section upright-unaligned-d upright-whole-unaligned-d upright-odd-unaligned-d
    if constexpr (!kStoreInPlace) __syncwarp();
//@section upright upright-whole
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      const int group = box * (kColumns / 8) + 2 * pair;
      const unsigned offset = lane % 16 * kSwizzle + (2 * pair + lane / 16) * 16;
      // The TMA swizzle XORs the 16-byte chunk index with the index of the 128-byte line, within its period.
      const unsigned swizzled = offset ^ ((offset >> 7 & (kSwizzle / 16 - 1)) << 4);
      stmatrix_x4(buffer + swizzled, packed_pair(d, group, 0), packed_pair(d, group, 1), packed_pair(d, group + 1, 0),
                  packed_pair(d, group + 1, 1));
    }
//@section upright-odd
    fill_box(d, buffer, box);
//@section upright-aligned-d upright-whole-aligned-d upright-odd-aligned-d
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
//@section upright-plain-stores
      tma_store(map, buffer, column + box * kColumns, row);
//@section upright-hinted-stores
      tma_store(map, buffer, column + box * kColumns, row, l2_policy<kEvictionD>());
//@section upright-aligned-d upright-whole-aligned-d upright-odd-aligned-d
      tma_store_commit();
    }
//@section upright-unaligned-d upright-whole-unaligned-d upright-odd-unaligned-d
    __syncwarp();
//@section upright-unaligned-d upright-whole-unaligned-d
#pragma unroll
    for (int first = 0; first < 16; first += kTogether) {
      const int within = first + lane / (kColumns / 2), x = column + box * kColumns;
      const unsigned offset = within * kSwizzle + lane % (kColumns / 2) * 4;
      const unsigned word = load_word(buffer + (offset ^ ((offset >> 7 & (kSwizzle / 16 - 1)) << 4)));
      store_row<kColumns>(out, static_cast<long long>(row + within) * n + x, word, row + within < m ? n - x : 0);
    }
//@section upright-odd-unaligned-d
#pragma unroll 2
    for (int within = 0; within < 16; ++within) {
#pragma unroll
      for (int first = 0; first < kStoreColumns; first += 64) {
        const int x = column + box * kStoreColumns + first, held = min(64, kStoreColumns - first);
        const unsigned word = 2 * lane < held ? load_word(buffer + (within * kStoreColumns + first + 2 * lane) * 2) : 0;
        store_row<64>(out, static_cast<long long>(row + within) * n + x, word, row + within < m ? min(n - x, held) : 0);
      }
    }
//@section upright upright-whole upright-odd
  }
}

//@section turned-aligned-d
// The four warps of a warpgroup hold 64 columns of D, 16 each, and fill one swizzled box after another together.
//@section turned-unaligned-d
// The four warps of a warpgroup hold 64 columns of D, 16 each, fill one swizzled box after another together, and share its rows.
//@section turned
template <typename Fragment>
//@section turned-aligned-d
__device__ __forceinline__ void store_by_tma(const Fragment& d, unsigned buffers, const TensorMap& map, int row, int column, int& turn) {
//@section turned-unaligned-d
__device__ __forceinline__ void store_in_words(const Fragment& d, unsigned buffers, Element* out, int row, int column, int m, int n,
                                               int& turn) {
//@section turned
  constexpr int kGroups = kBoxRows / 8;  // of 8 rows of D
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, barrier = kStoring + threadIdx.x / kWarpgroup;
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const unsigned buffer = buffers + turn * kBoxBytes;
    if (++turn == kStoreBuffers) turn = 0;
//@section turned-aligned-d
    if constexpr (!kStoreInPlace) {
      if (thread == 0) tma_store_wait_read<kStoreBuffers - 1>();
      named_barrier(barrier, kWarpgroup);
    }
//@section turned-unaligned-d
    if constexpr (!kStoreInPlace) named_barrier(barrier, kWarpgroup);
//@section turned
#pragma unroll
    for (int index = 0; index < kGroups; index += 2) {
      // A lane addresses 8 columns of a row of D: rows 0 to 7 of the first group for lanes 0 to 15, of the second for the others.
      const int group = box * kGroups + index;
      const unsigned at = (index + lane / 16) * 8 + lane % 8, chunk = 2 * (thread / 32) + lane / 8 % 2;
      const unsigned address = buffer + at * 128 + ((chunk ^ (at & 7)) << 4);
      if (index + 1 < kGroups) {
        stmatrix_x4_transposed(address, packed_pair(d, group, 0), packed_pair(d, group, 1), packed_pair(d, group + 1, 0),
                               packed_pair(d, group + 1, 1));
      } else {
        stmatrix_x2_transposed(address, packed_pair(d, group, 0), packed_pair(d, group, 1));
      }
    }
//@section turned-aligned-d
    fence_proxy_async();
//@section turned
    named_barrier(barrier, kWarpgroup);
//@section turned-aligned-d
    if (thread == 0) {
//@section turned-plain-stores
      tma_store(map, buffer, row, column + box * kBoxRows);
//@section turned-hinted-stores
      tma_store(map, buffer, row, column + box * kBoxRows, l2_policy<kEvictionD>());
//@section turned-aligned-d
      tma_store_commit();
    }
//@section turned-unaligned-d
#pragma unroll
    for (int first = 0; first < kBoxRows; first += 4) {
      const int within = first + thread / 32, y = column + box * kBoxRows + within;
      const unsigned word = load_word(buffer + within * 128 + (((lane / 4) ^ (within & 7)) << 4) + lane % 4 * 4);
      store_row<64>(out, static_cast<long long>(y) * m + row, word, y < n ? m - row : 0);
    }
//@section turned
  }
}

//@section unaligned-even-d
// Four neighbouring outputs, of which those outside of D are not stored. Rows of D are multiples of 4 bytes, or of 8.
__device__ __forceinline__ void store_four(Element* out, int row, int column, uint2 four, int n) {
  Element* line = out + static_cast<long long>(row) * n + column;
  if (n % 4 == 0) {
    if (column < n) *reinterpret_cast<uint2*>(line) = four;
  } else {
    if (column < n) *reinterpret_cast<unsigned*>(line) = four.x;
    if (column + 2 < n) *reinterpret_cast<unsigned*>(line + 2) = four.y;
  }
}

//@section unaligned-any-d
// Four neighbouring outputs, of which those outside of D are not stored.
__device__ __forceinline__ void store_four(Element* out, int row, int column, uint2 four, int n) {
  Element* line = out + static_cast<long long>(row) * n + column;
  if (column < n) store_element(line, four.x & 0xffff);
  if (column + 1 < n) store_element(line + 1, four.x >> 16);
  if (column + 2 < n) store_element(line + 2, four.y & 0xffff);
  if (column + 3 < n) store_element(line + 3, four.y >> 16);
}

//@end
template <typename Fragment>
__device__ __forceinline__ void store_directly(const Fragment& d, Element* out, int row, int column, int m, int n) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int upper = row + thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = upper + 8 * half;
    if (at >= m) continue;
    Element* line = out + static_cast<long long>(at) * n;
#pragma unroll
//@section one-product
    for (int group = 0; group < BLOCK_N / 8; ++group) {
//@section gated
    for (int group = 0; group < kColumnsOfD / 8; ++group) {
//@end
      const int col = column + group * 8 + lane % 4 * 2;
//@section aligned-d unaligned-even-d
      if (col < n) *reinterpret_cast<unsigned*>(line + col) = packed_pair(d, group, half);
//@section unaligned-any-d
      const unsigned pair = packed_pair(d, group, half);
      if (col < n) store_element(line + col, pair & 0xffff);
      if (col + 1 < n) store_element(line + col + 1, pair >> 16);
//@end
    }
  }
}

template <typename Fragment>
//@section unaligned-d
__device__ __forceinline__ void store_tile(const Fragment (&d)[kAtoms], unsigned smem, Element* out, const Unit& unit, int m, int n,
                                           int& turn) {
//@section aligned-d
__device__ __forceinline__ void store_tile(const Fragment (&d)[kAtoms], unsigned smem, const TensorMap& map, Element* out,
                                           const Unit& unit, int m, int n, int& turn) {
//@end
  const int warp = threadIdx.x / 32;
//@section upright upright-whole upright-odd
  const unsigned buffers = smem + (kStoreInPlace ? 0 : kStages * kStageBytes) + warp * kStoreBytes;
//@section turned
  const unsigned buffers = smem + (kStoreInPlace ? 0 : kStages * kStageBytes) + warp / 4 * kStoreBytes;
//@end
  if constexpr (kTmaStore && kStoreInPlace) named_barrier(kAllConsumers, kConsumerThreads);  // the pipeline has been read
//@section gated-turned
  store_by_tma(Halves{d[0], d[1]}, buffers, map, unit.row + tile_rows(), unit.column, turn);
//@section atoms-together
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
    const int row = unit.row + tile_rows() + atom * 64;
    if constexpr (kTmaStore) {
//@section upright-aligned-d upright-whole-aligned-d upright-odd-aligned-d
      store_by_tma(d[atom], buffers, map, row + warp % 4 * 16, unit.column, turn);
//@section turned-atoms-aligned-d
      store_by_tma(d[atom], buffers, map, row, unit.column, turn);
//@section upright-unaligned-d upright-whole-unaligned-d upright-odd-unaligned-d
      store_in_words(d[atom], buffers, out, row + warp % 4 * 16, unit.column, m, n, turn);
//@section turned-unaligned-d
      store_in_words(d[atom], buffers, out, row, unit.column, m, n, turn);
//@section atoms-together
    } else {
      store_directly(d[atom], out, row, unit.column, m, n);
    }
  }
//@end
}

// ---- split-K: partials in the workspace, summed in order by whichever CTA arrives last ------------------------------------
// Volatile, so that the compiler does not hoist the loads of a whole tile at once and spill.
__device__ __forceinline__ float4 load_from_l2(const float4* pointer) {
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(pointer)
               : "memory");
  return value;
}

//@section sum-spread
// The writes that this thread has seen, those before a barrier of its CTA among them, are visible to whoever sees the increment.
__device__ __forceinline__ void increment_release(unsigned* counter, unsigned most) {
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
}
__device__ __forceinline__ void increment_relaxed(unsigned* counter, unsigned most) {
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

//@end
struct Splits {
//@section sum-last
  unsigned* counters;  // one a (tile, CTA of the cluster); atomicInc wraps them to zero by itself
//@section sum-spread
  static constexpr int kPitch = 32;  // words between counters, so that each has a line of its own
  unsigned* counters;                // one a (tile, CTA of the cluster)
//@end
  float4* slots;

  __device__ Splits(void* workspace, int slots_in_all)
      : counters(static_cast<unsigned*>(workspace)),
//@section sum-last
        slots(reinterpret_cast<float4*>(static_cast<char*>(workspace) + (slots_in_all * 4 + 255) / 256 * 256)) {}
//@section sum-spread
        slots(reinterpret_cast<float4*>(static_cast<char*>(workspace) + (slots_in_all * 4 * kPitch + 255) / 256 * 256)) {}
//@end

  __device__ float4* slot(const Unit& unit, int split) const {
//@section pull
    constexpr int kSlot = BLOCK_M * BLOCK_N / kClusterK / 4;
//@section push
    constexpr int kSlot = kSourceBytes / 16;
//@end
    return slots + (static_cast<long long>(unit.slot) * kSplits + split) * kSlot;
  }

//@section sum-spread
  // Every consumer thread calls it after writing its partials; after it those of all splits can be read. All CTAs of the grid
  // are resident, so none waits for one that cannot start. Each increments the counter twice, and the last time wraps it.
  __device__ void meet(const Unit& unit) const {
    named_barrier(kAllConsumers, kConsumerThreads);
    if (threadIdx.x == 0) {
      unsigned* counter = counters + unit.slot * kPitch;
      increment_release(counter, 2 * kSplits - 1);
      while (load_acquire(counter) < kSplits) {
      }
      increment_relaxed(counter, 2 * kSplits - 1);
    }
    named_barrier(kAllConsumers, kConsumerThreads);
  }

//@end
  // Whether this CTA is the last of its tile; every consumer thread calls it after writing its partials.
  __device__ bool last(const Unit& unit, unsigned flag_address) const {
    __threadfence();
    named_barrier(kAllConsumers, kConsumerThreads);
    if (threadIdx.x == 0) {
      const unsigned ticket = atomicInc(counters + unit.slot, kSplits - 1);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(flag_address), "r"(ticket) : "memory");
    }
    named_barrier(kAllConsumers, kConsumerThreads);
    unsigned ticket;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(ticket) : "r"(flag_address) : "memory");
    __threadfence();
    return ticket == kSplits - 1;
  }

  __device__ float4 sum(const Unit& unit, int index) const {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      const float4 part = load_from_l2(slot(unit, split) + index);
      total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
    }
    return total;
  }
};

//@section sum-spread
// A CTA's share of the units of a warp: [first, end). Warps begin with different CTAs, which evens out shares of unequal size.
struct Share {
  int number, first, end;

  __device__ static Share of(int split, int units) {
    const int number = (split + kSplits - threadIdx.x / 32 % kSplits) % kSplits;
    return {number, number * units / kSplits, (number + 1) * units / kSplits};
  }
};

//@section sum-last
using Packed = unsigned[kAtoms][BLOCK_N / 4];

// Hands this fragment in; true in the CTA that arrives last, which gets the sum of all splits, rounded and packed.
__device__ __forceinline__ bool combine_fragments(const Accumulators& acc, Packed& sums, const Splits& splits, const Unit& unit,
                                                  unsigned flag) {
  float4* mine = splits.slot(unit, unit.split) + threadIdx.x;
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
    for (int group = 0; group < BLOCK_N / 8; ++group) {
      __stcg(mine + (atom * BLOCK_N / 8 + group) * kConsumerThreads, quad(acc[atom], group));
    }
  }
  if (!splits.last(unit, flag)) return false;
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
    for (int group = 0; group < BLOCK_N / 8; ++group) {
      const float4 total = splits.sum(unit, threadIdx.x + (atom * BLOCK_N / 8 + group) * kConsumerThreads);
      sums[atom][2 * group] = pack(total.x, total.y, Element());
      sums[atom][2 * group + 1] = pack(total.z, total.w, Element());
    }
  }
  return true;
}

//@end
//@section pull
// ---- K-cluster: partials in shared memory, each CTA sums its rows over the cluster -----------------------------------------
__device__ __forceinline__ void write_partials(const Accumulators& acc, unsigned smem) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
    const int row = tile_rows() + atom * 64 + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int group = 0; group < BLOCK_N / 8; ++group) {
      const float4 v = quad(acc[atom], group);
      const unsigned at = smem + (row * kPartialPitch + group * 8 + lane % 4 * 2) * 4;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * kPartialPitch * 4), "f"(v.z), "f"(v.w) : "memory");
    }
  }
}

__device__ __forceinline__ float4 sum_over_cluster(unsigned address, const Rank& rank) {
  float4 parts[kClusterK];
#pragma unroll
  for (int peer = 0; peer < kClusterK; ++peer) parts[peer] = load_remote(map_to_rank(address, rank.peer(rank.m, rank.n, peer)));
  float4 total = parts[0];
#pragma unroll
  for (int peer = 1; peer < kClusterK; ++peer) {
    total = make_float4(total.x + parts[peer].x, total.y + parts[peer].y, total.z + parts[peer].z, total.w + parts[peer].w);
  }
  return total;
}

__device__ __forceinline__ void reduce_cluster(unsigned smem, const Unit& unit, const Rank& rank, const Splits& splits, unsigned flag,
                                               Element* out, int m, int n) {
  constexpr int kQuads = BLOCK_M / kClusterK * BLOCK_N / 4;
  constexpr int kQuadsPerRow = BLOCK_N / 4;
  const int first_row = rank.k * (BLOCK_M / kClusterK);
  const auto store = [&](int quad, float4 v) {
    const int row = unit.row + first_row + quad / kQuadsPerRow, column = unit.column + quad % kQuadsPerRow * 4;
    if (row >= m || column >= n) return;
//@section pull-aligned-d
    *reinterpret_cast<uint2*>(out + static_cast<long long>(row) * n + column) =
        make_uint2(pack(v.x, v.y, Element()), pack(v.z, v.w, Element()));
//@section pull-unaligned-d
    store_four(out, row, column, make_uint2(pack(v.x, v.y, Element()), pack(v.z, v.w, Element())), n);
//@section pull
  };
  for (int quad = threadIdx.x; quad < kQuads; quad += kConsumerThreads) {
    const int row = first_row + quad / kQuadsPerRow;
    const float4 total = sum_over_cluster(smem + (row * kPartialPitch + quad % kQuadsPerRow * 4) * 4, rank);
    if constexpr (kSplits > 1) {
      __stcg(splits.slot(unit, unit.split) + quad, total);
    } else {
      store(quad, total);
    }
  }
  if constexpr (kSplits > 1) {
    if (!splits.last(unit, flag)) return;
    for (int quad = threadIdx.x; quad < kQuads; quad += kConsumerThreads) store(quad, splits.sum(unit, quad));
  }
}

//@section push
// ---- K-cluster: sums pushed to their owner, which adds them in the order of K -----------------------------------------------
__device__ __forceinline__ constexpr int first_unit(int chunk) { return chunk * kUnits / kClusterK; }

// The chunk of this warp that goes to, or comes to, a CTA. Warps begin with different CTAs, so that none is sent to by all at once.
__device__ __forceinline__ int chunk_of(int owner, int warp) { return (owner + kClusterK - warp % kClusterK) % kClusterK; }

// Announces what the CTAs along K, this one among them, will push to this CTA.
__device__ __forceinline__ void expect_sums(unsigned smem, const Rank& rank) {
  int units = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    const int chunk = chunk_of(rank.k, warp);
    units += first_unit(chunk + 1) - first_unit(chunk);
  }
  mbarrier_arrive_expect(smem + kSummed, units * kClusterK * kUnitBytes);
}

// Every thread of the cluster comes here once. Where sums take the place of the pipelines, all of these have been read after
// it; else the sums are on their way, and all that may still reach into a CTA are those that it waits for.
__device__ __forceinline__ void meet_with_sums() {
  if constexpr (kReceiveApart) {
    cluster_meet();
  } else {
    cluster_sync();
  }
}

__device__ __forceinline__ void push_sums(const Accumulators& acc, unsigned smem, const Rank& rank) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned mine = smem + kReceived + rank.k * kSourceBytes + warp * kChunk * kUnitBytes + lane * 16;
#pragma unroll
  for (int chunk = 0; chunk < kClusterK; ++chunk) {
    const unsigned owner = rank.peer(rank.m, rank.n, (chunk + warp) % kClusterK);
    const unsigned target = map_to_rank(mine, owner), summed = map_to_rank(smem + kSummed, owner);
#pragma unroll
    for (int index = 0; index < kChunk; ++index) {
      const int unit = first_unit(chunk) + index;
      if (unit < first_unit(chunk + 1)) {
        store_remote_async(target + index * kUnitBytes, quad(acc[unit / (BLOCK_N / 8)], unit % (BLOCK_N / 8)), summed);
      }
    }
  }
}

//@section push sum-spread
__device__ __forceinline__ void add(float4& total, const float4& part) {
  total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
}

//@section upright-units
// A lane's part of a unit of the output. Lanes exchange halves in pairs, so that each stores 8 bytes of one row.
__device__ __forceinline__ void store_unit(const float4& sum, Element* out, int row, int column, int m, int n) {
  const int lane = threadIdx.x % 32;
  const bool lower = lane % 2;
  const unsigned top = pack(sum.x, sum.y, Element()), bottom = pack(sum.z, sum.w, Element());
  const unsigned other = __shfl_xor_sync(0xffffffff, lower ? top : bottom, 1);
  row += lane / 4 + (lower ? 8 : 0);
  column += lane % 4 / 2 * 4;
  if (row >= m || column >= n) return;
//@section upright-units-aligned-d
  *reinterpret_cast<uint2*>(out + static_cast<long long>(row) * n + column) =
      lower ? make_uint2(other, bottom) : make_uint2(top, other);
//@section upright-units-unaligned-d
  store_four(out, row, column, lower ? make_uint2(other, bottom) : make_uint2(top, other), n);
//@section upright-units
}
//@section turned-units
// 8x8 outputs, a row in four lanes: afterwards a column.
__device__ __forceinline__ unsigned transpose(unsigned pair) {
  unsigned other;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

// A lane's part of a unit of the output, whose columns are rows of D. Lanes exchange halves in pairs, so that each stores 8 bytes.
__device__ __forceinline__ void store_unit(const float4& sum, Element* out, int row, int column, int m, int n) {
  const int lane = threadIdx.x % 32;
  const bool lower = lane % 2;
  const unsigned top = transpose(pack(sum.x, sum.y, Element())), bottom = transpose(pack(sum.z, sum.w, Element()));
  const unsigned other = __shfl_xor_sync(0xffffffff, lower ? top : bottom, 1);
  column += lane / 4;
  row += lane % 4 / 2 * 4 + (lower ? 8 : 0);
  if (row >= m || column >= n) return;
//@section turned-units-aligned-d
  *reinterpret_cast<uint2*>(out + static_cast<long long>(column) * m + row) =
      lower ? make_uint2(other, bottom) : make_uint2(top, other);
//@section turned-units-unaligned-d
  store_four(out, column, row, lower ? make_uint2(other, bottom) : make_uint2(top, other), m);
//@section turned-units
}
//@section push sum-spread

//@section push
// Adds the parts of the units that this CTA owns and stores them. A warp adds units of its own rows.
__device__ __forceinline__ void finish_sums(unsigned smem, const Unit& unit, const Rank& rank, const Splits& splits, unsigned flag,
                                            Element* out, int m, int n) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunk = chunk_of(rank.k, warp), first = first_unit(chunk), units = first_unit(chunk + 1) - first;
  const unsigned received = smem + kReceived + warp * kChunk * kUnitBytes + lane * 16;
  const int slot = warp * kChunk * 32 + lane;  // of the first unit
  const auto store = [&](int index, const float4& sum) {
    const int atom = (first + index) / (BLOCK_N / 8), group = (first + index) % (BLOCK_N / 8);
    store_unit(sum, out, unit.row + tile_rows() + atom * 64 + warp % 4 * 16, unit.column + group * 8, m, n);
  };
  mbarrier_wait(smem + kSummed, 0);
#pragma unroll
  for (int index = 0; index < kChunk; ++index) {
    if (index >= units) break;
    float4 total = load_shared(received + index * kUnitBytes);
#pragma unroll
    for (int source = 1; source < kClusterK; ++source) add(total, load_shared(received + source * kSourceBytes + index * kUnitBytes));
    if constexpr (kSplits > 1) {
      __stcg(splits.slot(unit, unit.split) + slot + index * 32, total);
    } else {
      store(index, total);
    }
  }
//@section push-last
  if constexpr (kSplits > 1) {
    if (!splits.last(unit, flag)) return;
    constexpr int kTogether = kChunk < 4 ? kChunk : 4;  // whose loads are in flight together
    for (int begin = 0; begin < units; begin += kTogether) {
      float4 totals[kTogether];
#pragma unroll
      for (int index = 0; index < kTogether; ++index) {
        totals[index] = splits.sum(unit, slot + min(begin + index, units - 1) * 32);
      }
#pragma unroll
      for (int index = 0; index < kTogether; ++index) {
        if (begin + index < units) store(begin + index, totals[index]);
      }
    }
  }
//@section push-spread
  splits.meet(unit);
  const Share share = Share::of(unit.split, units);
  constexpr int kTogether = kChunk / kSplits < 1 ? 1 : kChunk / kSplits < 4 ? kChunk / kSplits : 4;
  for (int begin = share.first; begin < share.end; begin += kTogether) {
    float4 totals[kTogether];
#pragma unroll
    for (int index = 0; index < kTogether; ++index) {
      totals[index] = splits.sum(unit, slot + min(begin + index, share.end - 1) * 32);
    }
#pragma unroll
    for (int index = 0; index < kTogether; ++index) {
      if (begin + index < share.end) store(begin + index, totals[index]);
    }
  }
//@section push
}

//@section pull-spread
// ---- split-K: every CTA of a tile adds a share of it -------------------------------------------------------------------------
// 8 columns of a warp's 16 rows are a unit. A warp writes the units of other CTAs to the workspace, and adds those of this CTA
// in the order of the splits that begins behind its own.
__device__ __forceinline__ void spread_sums(const Accumulators& acc, const Splits& splits, const Unit& unit, Element* out, int m,
                                            int n) {
  constexpr int kUnits = kAtoms * BLOCK_N / 8;
  constexpr int kShare = (kUnits + kSplits - 1) / kSplits;  // units of the largest share
  constexpr bool kUneven = kUnits % kSplits != 0;
  constexpr int kFetched = kSplits > 8 ? 1 : 16 / kSplits;
  constexpr int kTogether = kShare < kFetched ? kShare : kFetched;  // whose loads are in flight together
  constexpr bool kKeep = kRegisters * kAtoms + 4 * kShare <= 128;   // the own part stays in registers
  const int warp = threadIdx.x / 32;
  const Share share = Share::of(unit.split, kUnits);
  float4* mine = splits.slot(unit, unit.split) + threadIdx.x;
  float4 own[kKeep ? kShare : 1];
#pragma unroll
  for (int number = 0; number < kSplits; ++number) {
    const int first = number * kUnits / kSplits, units = (number + 1) * kUnits / kSplits - first;
#pragma unroll
    for (int index = 0; index < kShare; ++index) {
      if (index >= units) continue;
      const float4 part = quad(acc[(first + index) / (BLOCK_N / 8)], (first + index) % (BLOCK_N / 8));
      if (kKeep && number == share.number) {
        own[kKeep ? index : 0] = part;
      } else {
        __stcg(mine + (first + index) * kConsumerThreads, part);
      }
    }
  }
  splits.meet(unit);
  constexpr int kParts = kKeep ? kSplits - 1 : kSplits;  // to read; the last of kSplits would be the own one
#pragma unroll
  for (int begin = 0; begin < kShare; begin += kTogether) {
    float4 parts[kTogether][kParts];
#pragma unroll
    for (int index = 0; index < kTogether; ++index) {
      const int at = share.first + begin + index;
      if (begin + index >= kShare || (kUneven && at >= share.end)) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int source = unit.split + 1 + part < kSplits ? unit.split + 1 + part : unit.split + 1 + part - kSplits;
        parts[index][part] = load_from_l2(splits.slot(unit, source) + at * kConsumerThreads + threadIdx.x);
      }
    }
#pragma unroll
    for (int index = 0; index < kTogether; ++index) {
      const int at = share.first + begin + index;
      if (begin + index >= kShare || (kUneven && at >= share.end)) continue;
      float4 total = parts[index][0];
#pragma unroll
      for (int part = 1; part < kParts; ++part) add(total, parts[index][part]);
      if constexpr (kKeep) add(total, own[begin + index]);
      const int row = unit.row + tile_rows() + at / (BLOCK_N / 8) * 64 + warp % 4 * 16;
      store_unit(total, out, row, unit.column + at % (BLOCK_N / 8) * 8, m, n);
    }
  }
}

//@end
// ---- the kernel ---------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void init_barriers(unsigned smem) {
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(full_barrier(smem, stage), 1);
    mbarrier_init(empty_barrier(smem, stage), 4 * kTileWarpgroups * (kClusterM + kClusterN - 1));
//@section paired-rows
    mbarrier_init(shifted_barrier(smem, stage), kShifters);
//@end
  }
//@section push
  mbarrier_init(smem + kSummed, 1);
//@end
  mbarrier_init_fence();
}

__device__ __forceinline__ void sync_ctas() {
  if constexpr (kClusterSize > 1) {
    cluster_meet();
  } else {
    __syncthreads();
  }
}

//@section packs packs-both
// ---- packing: rows that TMA cannot read are copied to rows that begin at 128 bytes -------------------------------------------------
// Eight neighbouring elements of `end`. They begin in the middle of a word where their place is odd.
__device__ __forceinline__ uint4 eight_elements(const Element* from, long long at, long long end) {
  const int odd = at % 2;
  unsigned words[5];
  if (at + 8 + odd <= end) {
    const unsigned* first = reinterpret_cast<const unsigned*>(from + (at - odd));
#pragma unroll
    for (int index = 0; index < 4; ++index) words[index] = first[index];
    words[4] = odd ? first[4] : 0;
  } else {
#pragma unroll
    for (int index = 0; index < 5; ++index) {
      const long long low = at - odd + 2 * index, high = low + 1;
      const unsigned short* halves = reinterpret_cast<const unsigned short*>(from);
      words[index] = (low < end ? halves[low] : 0u) | (high < end ? halves[high] : 0u) << 16;
    }
  }
  const unsigned shift = 16 * odd;
  return make_uint4(__funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
                    __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift));
}

// Columns behind the last one are never read: to TMA they are outside of the view.
__device__ __forceinline__ void pack_operand(const Element* from, Element* to, int rows, int columns) {
  const int segments = (columns + kPackColumns - 1) / kPackColumns, pitch = (columns + kPackedColumns - 1) / kPackedColumns * kPackedColumns;
  const int warps = gridDim.x * (kPackThreads / 32);
  for (int index = blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32; index < rows * segments; index += warps) {
    const int row = index / segments, column = index % segments * kPackColumns + threadIdx.x % 32 * 8;
    if (column >= columns) continue;
    *reinterpret_cast<uint4*>(to + static_cast<long long>(row) * pitch + column) =
        eight_elements(from, static_cast<long long>(row) * columns + column, static_cast<long long>(rows) * columns);
  }
}

//@section packs
extern "C" __global__ void __launch_bounds__(kPackThreads) pack_rows(const Element* from, Element* to, int rows, int columns) {
  launch_dependents();
  wait_for_dependencies();
  pack_operand(from, to, rows, columns);
}

//@section packs-both
extern "C" __global__ void __launch_bounds__(kPackThreads)
    pack_rows(const Element* a, Element* packed_a, int rows_a, int columns_a, const Element* b, Element* packed_b, int rows_b,
              int columns_b) {
  launch_dependents();
  wait_for_dependencies();
  pack_operand(a, packed_a, rows_a, columns_a);
  pack_operand(b, packed_b, rows_b, columns_b);
}

//@end
extern "C" __global__ void __launch_bounds__(kThreads, kCtasPerSm)
    wgmma_tma_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
//@section gated
                   const __grid_constant__ TensorMap map_up,
//@section pairs-a
                   const __grid_constant__ TensorMap rest_a,
//@section pairs-b
                   const __grid_constant__ TensorMap rest_b,
//@section aligned-d-no-bias
                   const __grid_constant__ TensorMap map_d, Element* d, void* workspace, int m, int n, int k) {
//@section unaligned-d-no-bias
                   Element* d, void* workspace, int m, int n, int k) {
//@section aligned-d-bias
                   const __grid_constant__ TensorMap map_d, Element* d, const Element* bias, void* workspace, int m, int n, int k) {
//@section unaligned-d-bias
                   Element* d, const Element* bias, void* workspace, int m, int n, int k) {
//@section pairs-b-alone
  const TensorMap& rest_a = map_a;  // not read
//@section pairs-a-alone
  const TensorMap& rest_b = map_b;  // not read
//@end
  extern __shared__ unsigned char dynamic_smem[];
  const unsigned smem = align_up<1024>(smem_address(dynamic_smem));
  const unsigned flag = smem + kBarriers + 16 * kStages;
//@section fed-apart
  const bool producer = threadIdx.x >= kConsumerThreads;
//@section self-fed
  constexpr bool producer = false;
//@section constant-shape
  m = kSizeM, n = kSizeN, k = kSizeK;  // what the arguments are, as constants
//@end
  const Scheduler scheduler(m, n, k, kClusterSize > 1 ? cluster_rank() : 0);
//@section all-split
  const Splits splits(workspace, scheduler.tiles_m * scheduler.tiles_n * kClusterSize);
//@section tail-split
  const Splits splits(workspace, gridDim.x);  // fewer tiles are left than there are clusters
//@end

  if (threadIdx.x == 0) init_barriers(smem);
//@section push
  if (threadIdx.x == 0) expect_sums(smem, scheduler.rank);
//@end
//@section fed-apart
  if (threadIdx.x == kConsumerThreads) {
//@section self-fed
  if (threadIdx.x == 32) {
//@end
    tma_prefetch_map(map_a);
    tma_prefetch_map(map_b);
//@section gated
    tma_prefetch_map(map_up);
//@section pairs-a
    tma_prefetch_map(rest_a);
//@section pairs-b
    tma_prefetch_map(rest_b);
//@end
//@section aligned-d
    if constexpr (kTmaStore) tma_prefetch_map(map_d);
//@end
  }
  launch_dependents();
  sync_ctas();
  wait_for_dependencies();

  if (producer) {
    if constexpr (kHandOver) registers_decrease<kProducerRegisters>();
//@section single-rows-one-product
    if (threadIdx.x == kConsumerThreads) produce(smem, map_a, map_b, scheduler);
//@section gated
    if (threadIdx.x == kConsumerThreads) produce(smem, map_a, map_b, map_up, scheduler);
//@section paired-rows
    if (threadIdx.x == kConsumerThreads) produce(smem, map_a, map_b, rest_a, rest_b, scheduler);
    if (threadIdx.x >= kConsumerThreads + 32) shift(smem, scheduler, k);
//@end
    __syncwarp();
//@section push
    meet_with_sums();
//@end
  } else {
    if constexpr (kHandOver) registers_increase<kConsumerRegisters>();
    Ring ring;
    int turn = 0;
    int other = kPingpong ? threadIdx.x / kWarpgroup : 0;  // tiles that the other warpgroups take first
    if (kPingpong && threadIdx.x >= kConsumerThreads - kWarpgroup) pass_turn();  // the first turn is the first warpgroup's
    for (int index = scheduler.first(); index < scheduler.units(); index += scheduler.step()) {
      const Unit unit = scheduler.unit(index);
      if constexpr (kPingpong) {
        if (other-- > 0) {
          ring.skip(unit.end - unit.begin);
          continue;
        }
        other = kConsumers - 1;
      }
      Accumulators acc;
//@section bias-of-columns
      begin_sums(acc, unit, bias, n);
//@section bias-of-rows
      begin_sums(acc, unit, bias, m);
//@section fed-apart
      multiply(acc, smem, unit, ring, scheduler.rank);
//@section self-fed
      multiply(acc, smem, unit, ring, scheduler.rank, map_a, map_b);
//@end
      if constexpr (kClusterK > 1) {
//@section pull
        named_barrier(kAllConsumers, kConsumerThreads);  // both consumers have read their last stage
        write_partials(acc, smem);
//@section push
        if constexpr (!kReceiveApart) meet_with_sums();
        push_sums(acc, smem, scheduler.rank);
        if constexpr (kReceiveApart) meet_with_sums();
        finish_sums(smem, unit, scheduler.rank, splits, flag, d, m, n);
//@end
      } else if constexpr (kSplits > 1) {
//@section tail-split
        if (unit.split < 0) {
//@section tail-split-aligned-d
          store_tile(acc, smem, map_d, d, unit, m, n, turn);
//@section tail-split-unaligned-d
          store_tile(acc, smem, d, unit, m, n, turn);
//@section tail-split
          continue;
        }
//@section sum-last
        Packed sums;
//@section last-aligned-d
        if (combine_fragments(acc, sums, splits, unit, flag)) store_tile(sums, smem, map_d, d, unit, m, n, turn);
//@section last-unaligned-d
        if (combine_fragments(acc, sums, splits, unit, flag)) store_tile(sums, smem, d, unit, m, n, turn);
//@section pull-spread
        spread_sums(acc, splits, unit, d, m, n);
//@end
      } else {
//@section aligned-d
        store_tile(acc, smem, map_d, d, unit, m, n, turn);
      }
    }
    if constexpr (kTmaStore) {
      if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();
    }
//@section unaligned-d
        store_tile(acc, smem, d, unit, m, n, turn);
      }
    }
//@section self-fed-drains
    // A CTA must not end while arrivals of its peers are on their way to it.
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage, ring.advance()) mbarrier_wait(empty_barrier(smem, ring.stage), ring.parity ^ 1);
    }
//@end
  }
//@section pull
  if constexpr (kClusterK > 1) {
    cluster_sync();
    if (!producer) reduce_cluster(smem, scheduler.unit(scheduler.first()), scheduler.rank, splits, flag, d, m, n);
  }
//@section meets
  if constexpr (kClusterSize > 1) cluster_meet();  // no CTA ends while a peer may still reach into its shared memory
//@end
}
