//@section row-major-a
// D = A B on Hopper for short K and large outputs: A row-major M x K, B row-major K x N (kRowMajorB) or column-major, D
//@section column-major-a
// D = A B on Hopper for short K and large outputs: A column-major (K x M in memory), B row-major K x N, D
//@end
// row-major M x N. A warpgroup keeps its rows of A for all of K in registers and multiplies them by one column tile after another,
// so that wgmma reads only B from shared memory. One thread keeps a ring of slots full with TMA; CTAs of a cluster share B by
// multicast. The warpgroups of a CTA may take turns with their epilogues. M and N are arguments, the steps along K a constant;
// rows must be multiples of 16 bytes.
//@section activation
// An activation of the sums is what is rounded to D.
//@end
#include <cuda_bf16.h>
#include <cuda_fp16.h>

//@section activation
#include <cudal2/activation.cuh>
//@end
#include <cudal2/barrier.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/ldmatrix.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/registers.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/stmatrix.cuh>
#include <cudal2/tma.cuh>
#include <cudal2/wgmma.cuh>

using namespace cudal2;

//@constants

// ---- what follows from the constants -------------------------------------------------------------------------------------
constexpr int kWarpgroup = 128;
constexpr int BLOCK_M = 64 * kAtoms * kConsumers;
constexpr int kConsumerThreads = kWarpgroup * kConsumers;
constexpr bool kHandOver = kConsumers > 1;  // the producer is a warpgroup that hands its registers to the consumers
constexpr int kThreads = kConsumerThreads + (kHandOver ? kWarpgroup : 32);
constexpr int kProducerRegisters = 40;
// A CTA owns what its threads had at launch; a warpgroup that asks for more waits for ever.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kConsumerRegisters = (kThreads * kLaunchRegisters - kWarpgroup * kProducerRegisters) / kConsumerThreads / 8 * 8;
constexpr int kBlocks = (kSteps + 3) / 4;  // of 64 along K; a slot of the ring holds one of B

constexpr int kColumns = BLOCK_N % 64 == 0 ? 64 : 32;  // width of a store box and of an MN-major column group
constexpr int kSwizzle = 2 * kColumns;
constexpr int kGroups = BLOCK_N / kColumns;
constexpr bool kSliceColumns = kGroups % kCluster == 0;  // how multicast slices an MN-major B: by columns, else by K
constexpr int kSliceGroups = kSliceColumns ? kGroups / kCluster : kGroups;
constexpr int kSliceRows = kSliceColumns ? 64 : 64 / kCluster;

constexpr int kSlotBytes = BLOCK_N * 64 * 2;
constexpr int kPieceBytes = 64 * 64 * 2;  // 64 rows of A by 64 along K, one atom's
constexpr int kPieces = kAtoms * kConsumers;
constexpr int kPiecesPerSlot = kSlotBytes / kPieceBytes < kPieces ? kSlotBytes / kPieceBytes : kPieces;
constexpr int kSlotsOfA = (kPieces + kPiecesPerSlot - 1) / kPiecesPerSlot;  // for one block of A

constexpr int kBoxBytes = 16 * kSwizzle;  // a warp's 16 rows of a column group
constexpr int kTileBytes = kAtoms * kGroups * kBoxBytes;
constexpr int kStaging = kSlots * kSlotBytes;
constexpr int kBarriers = kStaging + 4 * kConsumers * kStagings * kTileBytes;
constexpr int kRegisters = wgmma_registers<Element, Register, BLOCK_N, kRowMajorB>::kRegisters;

constexpr int kNoTurns = 0, kTurnOfStaging = 1, kTurnOfPause = 2;  // values of kTurns
constexpr int kTurn = 1;  // named barrier of the first warpgroup's turn

static_assert(kSlotBytes >= kPieceBytes, "a slot holds 64 rows of A");
static_assert(BLOCK_N / kCluster % 8 == 0 && kSliceRows % 8 == 0, "multicast slices are whole 8-row swizzle groups");
static_assert(kSlots >= kSlotsOfA + 2, "a block of A and one of B fit beside the slot of a warpgroup that waits for its turn");
static_assert(kTurns == kNoTurns || kConsumers > 1, "one warpgroup takes no turns");
static_assert(kLateStore || kTurns != kTurnOfPause, "a turn that ends behind the next products has its stores there too");

using Accumulators = Register[kAtoms][kRegisters];
using Fragments = unsigned[kAtoms][kSteps][4];  // A: 64 rows of an atom for all of K

// ---- work: every cluster takes an equal run of (row panel, column tile), one panel after another -------------------------
struct Segment {
  int row;                  // of the CTA's panel, in elements
  int first, count, phase;  // column tiles [first, first + count), visited from `phase` on, wrapping

  __device__ int column(int visit) const {
    const int at = visit + phase;
    return (first + (at < count ? at : at - count)) * BLOCK_N;
  }
};

struct Walk {
  long long unit, end;
  int tiles, cluster, rank;

  __device__ Walk(int m, int n)
      : tiles((n + BLOCK_N - 1) / BLOCK_N), cluster(blockIdx.x / kCluster), rank(blockIdx.x % kCluster) {
    const long long units = static_cast<long long>((m + kCluster * BLOCK_M - 1) / (kCluster * BLOCK_M)) * tiles;
    const int clusters = gridDim.x / kCluster;
    unit = units * cluster / clusters;
    end = units * (cluster + 1) / clusters;
  }
  __device__ bool done() const { return unit >= end; }
  // The next tiles of one panel. Clusters start at different phases, so that they do not all read and write one stripe.
  __device__ Segment next() {
    const int panel = static_cast<int>(unit / tiles), first = static_cast<int>(unit % tiles);
    const int count = static_cast<int>(min(static_cast<long long>(tiles - first), end - unit));
    unit += count;
    return {(panel * kCluster + rank) * BLOCK_M, first, count, cluster % kPhases * count / kPhases};
  }
};

// Position in the ring of slots; the parity flips on every wrap.
struct Ring {
  int slot = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ unsigned full_barrier(unsigned smem, int slot) { return smem + kBarriers + 16 * slot; }
__device__ __forceinline__ unsigned empty_barrier(unsigned smem, int slot) { return smem + kBarriers + 16 * slot + 8; }

// ---- producer: one thread keeps the ring full ----------------------------------------------------------------------------
struct Producer {
  unsigned smem;
  const TensorMap& map_a;
  const TensorMap& map_b;
  int rank;
  unsigned long long keep;  // L2's policy for B
  Ring ring;

  // Waits for a free slot and announces its bytes; returns its address.
  __device__ __forceinline__ unsigned open(int bytes) {
    mbarrier_wait(empty_barrier(smem, ring.slot), ring.parity ^ 1);
    mbarrier_arrive_expect(full_barrier(smem, ring.slot), bytes);
    return smem + ring.slot * kSlotBytes;
  }

  __device__ __forceinline__ void load_a(int row, int block) {
#pragma unroll
    for (int first = 0; first < kPieces; first += kPiecesPerSlot) {
      const int pieces = min(kPiecesPerSlot, kPieces - first);
      const unsigned slot = open(pieces * kPieceBytes), full = full_barrier(smem, ring.slot);
      for (int piece = 0; piece < pieces; ++piece) {
//@section row-major-a
        tma_load(slot + piece * kPieceBytes, map_a, full, block * 64, row + (first + piece) * 64);
//@section column-major-a
        tma_load(slot + piece * kPieceBytes, map_a, full, row + (first + piece) * 64, block * 64);
//@end
      }
      ring.advance();
    }
  }

  __device__ __forceinline__ void load_slice(unsigned target, unsigned full, int x, int y) {
    constexpr unsigned short kAll = (1 << kCluster) - 1;
    if constexpr (kCluster > 1) {
      if constexpr (kKeepB) {
        tma_load_multicast(target, map_b, full, x, y, kAll, keep);
      } else {
        tma_load_multicast(target, map_b, full, x, y, kAll);
      }
    } else if constexpr (kKeepB) {
      tma_load(target, map_b, full, x, y, keep);
    } else {
      tma_load(target, map_b, full, x, y);
    }
  }

  __device__ __forceinline__ void load_b(int column, int block) {
    const unsigned slot = open(kSlotBytes), full = full_barrier(smem, ring.slot);
    if constexpr (kRowMajorB) {
      const int group = kSliceColumns ? rank * kSliceGroups : 0, k_row = kSliceColumns ? 0 : rank * kSliceRows;
#pragma unroll
      for (int i = 0; i < kSliceGroups; ++i) {
        load_slice(slot + ((group + i) * 64 + k_row) * kSwizzle, full, column + (group + i) * kColumns, block * 64 + k_row);
      }
    } else {
      constexpr int kRows = BLOCK_N / kCluster;
      load_slice(slot + rank * kRows * 128, full, block * 64, column + rank * kRows);
    }
    ring.advance();
  }

  __device__ __forceinline__ void run(Walk walk) {
    while (!walk.done()) {
      const Segment segment = walk.next();
      for (int visit = 0; visit < segment.count; ++visit) {
        for (int block = 0; block < kBlocks; ++block) {
          if (visit == 0) load_a(segment.row, block);
          load_b(segment.column(visit), block);
        }
      }
    }
//@section drains
    // A CTA must not end while arrivals of its peers are on their way to it. Every slot is free again once the last has come.
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot, ring.advance()) mbarrier_wait(empty_barrier(smem, ring.slot), ring.parity ^ 1);
//@end
  }
};

// ---- consumers -----------------------------------------------------------------------------------------------------------
// A warpgroup waits for its turn with the epilogue, and hands it on to the next one.
__device__ __forceinline__ void await_turn() {
  if constexpr (kTurns != kNoTurns) named_barrier(kTurn + threadIdx.x / kWarpgroup, 2 * kWarpgroup);
}
__device__ __forceinline__ void pass_turn() {
  if constexpr (kTurns != kNoTurns) named_barrier_arrive(kTurn + (threadIdx.x / kWarpgroup + 1) % kConsumers, 2 * kWarpgroup);
}

__device__ __forceinline__ unsigned packed_pair(const float (&d)[BLOCK_N / 2], int pair) {
//@section no-activation
  return pack<Element>(d[2 * pair], d[2 * pair + 1]);
//@section activation
  return pack<Element>(Activation::of(d[2 * pair]), Activation::of(d[2 * pair + 1]));
//@end
}
__device__ __forceinline__ unsigned packed_pair(const unsigned (&d)[BLOCK_N / 4], int pair) { return d[pair]; }

struct Consumer {
  unsigned smem;
  const TensorMap& map_d;
  unsigned long long stream;  // L2's policy for D
  Ring ring;
  int warpgroup, warp, lane;
  int staged;           // buffer of staging that the next tile takes, then the one that it has taken
  bool pending;         // a staged tile has not been sent yet
  int sent_x, sent_y;   // where it belongs

  __device__ Consumer(unsigned smem, const TensorMap& map_d)
      : smem(smem), map_d(map_d), warpgroup(threadIdx.x / kWarpgroup), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32),
        staged(0), pending(false), sent_x(0), sent_y(0) {
    if constexpr (kStreamD) stream = l2_policy<1>();
  }

  __device__ __forceinline__ unsigned staging() const {
    return smem + kStaging + ((threadIdx.x / 32) * kStagings + staged) * kTileBytes;
  }

  // Tells every CTA that writes into this slot that this warp has read it.
  __device__ __forceinline__ void release(int slot) const {
    if constexpr (kCluster == 1) {
      if (lane == 0) mbarrier_arrive(empty_barrier(smem, slot));
    } else {
      if (lane < kCluster) mbarrier_arrive_remote(empty_barrier(smem, slot), lane);
    }
  }

  // The warpgroup's part of a block of A, from as many slots as the CTA's part takes; leaves the ring behind them.
  __device__ __forceinline__ void load_a(Fragments& a, int block) {
#pragma unroll
    for (int slot = 0; slot < kSlotsOfA; ++slot, ring.advance()) {
      mbarrier_wait(full_barrier(smem, ring.slot), ring.parity);
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom) {
        const int piece = warpgroup * kAtoms + atom - slot * kPiecesPerSlot;
        if (piece < 0 || piece >= kPiecesPerSlot) continue;
//@section row-major-a
        const unsigned row = smem + ring.slot * kSlotBytes + piece * kPieceBytes + (warp * 16 + lane % 16) * 128;
//@section column-major-a
        // Rows in shared memory run along M, so ldmatrix transposes the 8x8 tiles: two along M, then two further along K.
        const unsigned row = smem + ring.slot * kSlotBytes + piece * kPieceBytes + (lane / 16 * 8 + lane % 8) * 128;
        const int chunk = (2 * warp + lane / 8 % 2) ^ (lane % 8);  // as the 128-byte swizzle of the box
//@end
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          if (4 * block + step >= kSteps) continue;
          unsigned(&to)[4] = a[atom][4 * block + step];
//@section row-major-a
          const int chunk = (2 * step + lane / 16) ^ (lane % 8);  // as the 128-byte swizzle of the box
          ldmatrix_x4(row + chunk * 16, to[0], to[1], to[2], to[3]);
//@section column-major-a
          ldmatrix_x4_trans(row + step * 16 * 128 + chunk * 16, to[0], to[1], to[2], to[3]);
//@end
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_block(Accumulators& acc, const Fragments& a, int block) const {
    const unsigned slot = smem + ring.slot * kSlotBytes;
    const unsigned long long b = kRowMajorB ? wgmma_descriptor<kSwizzle>(slot, 64 * kSwizzle, 8 * kSwizzle)
                                            : wgmma_descriptor<128>(slot, 16, 1024);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (4 * block + step >= kSteps) continue;
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom) {
        wgmma_registers<Element, Register, BLOCK_N, kRowMajorB>::run(
            acc[atom], a[atom][4 * block + step], wgmma_advance(b, step * (kRowMajorB ? 16 * kSwizzle : 32)), block + step > 0);
      }
    }
  }

  __device__ __forceinline__ void pin(Accumulators& acc) const {
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) wgmma_pin(acc[atom]);
  }

  // One column tile into the accumulators. kFirst: of a segment, where A comes through the ring as well. Returns with the last
  // products complete, the turn taken, and a buffer of staging free.
  template <bool kFirst>
  __device__ __forceinline__ void multiply(Accumulators& acc, Fragments& a) {
    int previous = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      int slot_of_a = ring.slot;
      if constexpr (kFirst) load_a(a, block);
      mbarrier_wait(full_barrier(smem, ring.slot), ring.parity);
      pin(acc);
      wgmma_fence();
      multiply_block(acc, a, block);
      wgmma_commit();
      if (block == 0 && kLateStore && pending) {
        // The tensor cores are at work again; what is left of the tile before is hidden behind them.
        if constexpr (kTurns == kTurnOfPause) pass_turn();
        send();
      }
      if constexpr (kFirst) {
        wgmma_wait<0>();
        pin(acc);
#pragma unroll
        for (int slot = 0; slot < kSlotsOfA; ++slot) {
          release(slot_of_a);
          slot_of_a = slot_of_a + 1 == kSlots ? 0 : slot_of_a + 1;
        }
        release(ring.slot);
      } else if (block > 0) {
        // One group stays in flight, so that the tensor cores never wait for the barrier of the next slot.
        wgmma_wait<1>();
        release(previous);
      }
      if (block == kBlocks - 1) {
        await_turn();
        free_staging();
      }
      previous = ring.slot;
      ring.advance();
    }
    if constexpr (!kFirst) {
      pin(acc);
      wgmma_wait<0>();
      pin(acc);
      release(previous);
    }
  }

  // Waits until TMA has read the buffer that the next tile is staged in.
  __device__ __forceinline__ void free_staging() {
    if (lane == 0) tma_store_wait_read<kStagings - 1>();
    __syncwarp();
  }

  __device__ __forceinline__ void stage(const Accumulators& acc, int x, int y) {
    const unsigned buffer = staging();
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
      for (int pair = 0; pair < BLOCK_N / 16; ++pair) {
        const int box = pair / (kColumns / 16), within = pair % (kColumns / 16);
        const unsigned offset = lane % 16 * kSwizzle + (2 * within + lane / 16) * 16;
        // The TMA swizzle XORs the 16-byte chunk index with the index of the 128-byte line, within its period.
        const unsigned swizzled = offset ^ ((offset >> 7 & (kSwizzle / 16 - 1)) << 4);
        const auto& d = acc[atom];
        stmatrix_x4(buffer + (atom * kGroups + box) * kBoxBytes + swizzled, packed_pair(d, 4 * pair), packed_pair(d, 4 * pair + 1),
                    packed_pair(d, 4 * pair + 2), packed_pair(d, 4 * pair + 3));
      }
    }
    pending = true;
    sent_x = x;
    sent_y = y;
  }

  // The staged tile goes to global memory, a warp's own rows.
  __device__ __forceinline__ void send() {
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
        for (int box = 0; box < kGroups; ++box) {
          const unsigned from = staging() + (atom * kGroups + box) * kBoxBytes;
          if constexpr (kStreamD) {
            tma_store(map_d, from, sent_x + box * kColumns, sent_y + atom * 64, stream);
          } else {
            tma_store(map_d, from, sent_x + box * kColumns, sent_y + atom * 64);
          }
        }
      }
      tma_store_commit();
    }
    __syncwarp();
    if (++staged == kStagings) staged = 0;
    pending = false;
  }

  template <bool kFirst>
  __device__ __forceinline__ void tile(Accumulators& acc, Fragments& a, const Segment& segment, int visit) {
    multiply<kFirst>(acc, a);
    stage(acc, segment.column(visit), segment.row + warpgroup * kAtoms * 64 + warp * 16);
    if constexpr (!kLateStore) send();
    if constexpr (kTurns == kTurnOfStaging) pass_turn();
  }

  __device__ __forceinline__ void run(Walk walk) {
    Accumulators acc;
    Fragments a;
    if (kTurns != kNoTurns && warpgroup == kConsumers - 1) pass_turn();  // the first turn is the first warpgroup's
    while (!walk.done()) {
      const Segment segment = walk.next();
      tile<true>(acc, a, segment, 0);
#pragma unroll 1
      for (int visit = 1; visit < segment.count; ++visit) tile<false>(acc, a, segment, visit);
    }
    if (kLateStore && pending) {
      if constexpr (kTurns == kTurnOfPause) pass_turn();
      send();
    }
    if (kTurns != kNoTurns && warpgroup == 0) await_turn();  // takes the last warpgroup's last arrival
    if (lane == 0) tma_store_wait_read<0>();
  }
};

// ---- the kernel ----------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void init_barriers(unsigned smem) {
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    mbarrier_init(full_barrier(smem, slot), 1);
    mbarrier_init(empty_barrier(smem, slot), 4 * kConsumers * kCluster);
  }
  mbarrier_init_fence();
}

__device__ __forceinline__ void sync_ctas() {
  if constexpr (kCluster > 1) {
    cluster_meet();
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    resident_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                  const __grid_constant__ TensorMap map_d, int m, int n) {
  extern __shared__ unsigned char dynamic_smem[];
  const unsigned smem = align_up<1024>(smem_address(dynamic_smem));
  const Walk walk(m, n);

  if (threadIdx.x == 0) init_barriers(smem);
  if (threadIdx.x == kConsumerThreads) {
    tma_prefetch_map(map_a);
    tma_prefetch_map(map_b);
    tma_prefetch_map(map_d);
  }
  launch_dependents();
  sync_ctas();
  wait_for_dependencies();

  if (threadIdx.x >= kConsumerThreads) {
    if constexpr (kHandOver) registers_decrease<kProducerRegisters>();
    if (threadIdx.x == kConsumerThreads) {
      Producer producer{smem, map_a, map_b, walk.rank, {}, {}};
      if constexpr (kKeepB) producer.keep = l2_policy<2>();
      producer.run(walk);
    }
    __syncwarp();
  } else {
    if constexpr (kHandOver) registers_increase<kConsumerRegisters>();
    Consumer(smem, map_d).run(walk);
  }
//@section meets
  if constexpr (kCluster > 1) cluster_meet();  // no CTA ends while a peer may still reach into its shared memory
//@end
}
