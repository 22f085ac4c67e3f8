// A product of a narrow operand, the tokens, with a wide one, the weights. Tokens are the rows of A and weights are B, row-major
// K x N (kWeightsByK) or column-major; or tokens are the columns of B, and weights the rows of A (kTokensAreRows is false).
// The time is that of reading the weights once. They take the side of 16 rows in mma.sync, D^T = W^T X^T, and go from global
// memory to the one lane that multiplies them: no two lanes share a byte, so no barrier stands in the main loop. Within a product
// any order of K will do. A lane takes 8 consecutive k of 32: 16 bytes of a row of tokens are its fragments.
// Warps of a CTA take turns along K, CTAs of a cluster take parts of it. Partial sums are added in a fixed order: those of warps
// through shared memory, those of CTAs by pushes into the CTA that stores the result.
//@section cluster
#include <cudal2/cluster.cuh>
//@end
#include <cudal2/convert.cuh>
//@section shared-ring
#include <cudal2/cp_async.cuh>
//@section cluster
#include <cudal2/mbarrier.cuh>
//@end
#include <cudal2/mma.cuh>
#include <cudal2/opaque.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/stream.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;

//@constants

// ---- what follows from the constants --------------------------------------------------------------------------------------
constexpr int kThreads = 32 * kWarps;
constexpr int kTiles = BLOCK_FEATURES / 16, kGroups = BLOCK_TOKENS / 8;  // of products: 16 features by 8 tokens
// A lane has neighbouring features, 2 of each product, up to 16 bytes; wider tiles repeat that for every 64 features.
constexpr int kRepeats = (kTiles + 3) / 4, kLaneFeatures = 2 * kTiles / kRepeats;
constexpr int kStepK = 32;                 // of a warp
constexpr int kRoundK = kStepK * kWarps;   // of a CTA

// The weights of a lane in one step: rows along features for 8 k, or along k for each of its features.
constexpr int kPerRepeat = kWeightsByK ? 8 : kLaneFeatures, kVectors = kPerRepeat * kRepeats;
constexpr int kWords = kWeightsByK ? kLaneFeatures / 2 : 4;

//@section fixed-shape
constexpr int kRows = TOKENS < BLOCK_TOKENS ? TOKENS : BLOCK_TOKENS;  // of sums that are stored
//@section any-shape
constexpr int kRows = BLOCK_TOKENS;
//@end
constexpr int kPitch = BLOCK_FEATURES + 4;  // floats of a row of sums; the rows of a fragment start in different banks
constexpr int kQuads = kRows * BLOCK_FEATURES / 4;
constexpr unsigned kSumBytes = kRows * kPitch * 4;

//@section register-ring
constexpr unsigned kWarpBytes = kSumBytes;
//@section shared-ring
constexpr unsigned kWeightBytes = 32 * kVectors * kWords * 4, kStageBytes = kWeightBytes + 32 * kGroups * 16;
// The sums of a warp lie over its own stages where they fit.
constexpr unsigned kWarpBytes = kStages * kStageBytes > kSumBytes ? kStages * kStageBytes : kSumBytes;
//@section cluster
constexpr int kShare = (kQuads + kClusterK - 1) / kClusterK;  // quads of sums that one CTA adds and stores
constexpr unsigned kMailbox = kWarps * kWarpBytes;            // parts of the sums from every CTA of the cluster
constexpr unsigned kLanded = kMailbox + kClusterK * kShare * 16;
//@end

static_assert(kThreads <= 1024, "a CTA has at most 1024 threads");
static_assert(kTiles == 1 || kTiles == 2 || kTiles % 4 == 0, "a lane holds 2, 4 or 8 neighbouring features");
//@section fixed-shape
static_assert(K % 8 == 0, "a lane takes 8 consecutive k");
//@end
static_assert(BLOCK_TOKENS % 8 == 0, "products have 8 tokens");

// ---- from global memory to fragments --------------------------------------------------------------------------------------
// What a lane multiplies in one step.
struct Stage {
  unsigned weights[kVectors][kWords];
  unsigned tokens[kGroups][4];
};

// Where a lane reads next. Features and tokens outside the matrices repeat the last ones inside, whose sums are not stored.
struct Source {
  const Element* weights;  // of the lane's k and first feature
  const Element* tokens[kGroups];
  long long stride;  // elements from one row of weights to the next
  int last;          // offset of the last feature at which a vector may start, from the lane's first one
  int left;          // k from the lane's one to the end of the CTA's part
  unsigned long long policy;

  __device__ __forceinline__ Source(const Element* __restrict__ x, const Element* __restrict__ w, int token, int feature, int k,
                                    int end, int tokens_in_all, int features, int K) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = k + warp * kStepK + lane % 4 * 8;
    int column = feature + lane / 4 * kLaneFeatures;
    if constexpr (kGuardFeatures) column = min(column, kWeightsByK ? features - kLaneFeatures : features - 1);
    stride = kWeightsByK ? features : K;
    weights = w + (kWeightsByK ? first * stride + column : column * stride + first);
    last = features - (kWeightsByK ? kLaneFeatures : 1) - column;
    left = end - first;
    policy = l2_policy<kEviction>();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      int row = token + 8 * i + lane / 4;
      if constexpr (kGuardTokens) row = min(row, tokens_in_all - 1);
      tokens[i] = x + static_cast<long long>(row) * K + first;
      hide(tokens[i]);
    }
    hide(weights);  // else every load computes its address from the start
  }

  __device__ __forceinline__ void advance(int steps) {
    weights += steps * kRoundK * (kWeightsByK ? stride : 1);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) tokens[i] += steps * kRoundK;
    left -= steps * kRoundK;
  }

  // A vector of weights, some steps on.
  __device__ __forceinline__ const Element* vector(int step, int v) const {
    const int k = step * kRoundK + (kWeightsByK ? v % 8 : 0);
    const int wanted = v / kPerRepeat * 64 + (kWeightsByK ? 0 : v % kPerRepeat);
    const int feature = kGuardFeatures ? min(wanted, last) : wanted;
    return weights + (kWeightsByK ? k * stride + feature : feature * stride + k);
  }

  __device__ __forceinline__ const Element* token(int step, int i) const { return tokens[i] + step * kRoundK; }

  __device__ __forceinline__ bool inside(int step) const { return !kGuardK || step * kRoundK < left; }
};

//@section register-ring
__device__ __forceinline__ void load(Stage& stage, const Source& from, int step) {
  const bool inside = from.inside(step);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) stream_or_zero(stage.weights[v], from.vector(step, v), inside, from.policy);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) load_or_zero(stage.tokens[i], from.token(step, i), inside);
}

//@section shared-ring
// A stage of a warp in shared memory holds vector by vector, of all lanes: a lane reads what it copied, so it waits for itself.
__device__ __forceinline__ void copy(unsigned stage, const Source& from) {
  const bool inside = from.inside(0);
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    cp_async_or_zero<4 * kWords>(stage + (32 * v + lane) * (4 * kWords), from.vector(0, v), inside, from.policy);
  }
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    cp_async_or_zero<16>(stage + kWeightBytes + (32 * i + lane) * 16, from.token(0, i), inside);
  }
}

template <int kCount>
__device__ __forceinline__ void read_words(unsigned (&to)[kCount], unsigned address) {
  if constexpr (kCount == 4) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  } else {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(to[0]) : "r"(address) : "memory");
  }
}

__device__ __forceinline__ void read(Stage& to, unsigned stage) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) read_words(to.weights[v], stage + (32 * v + lane) * (4 * kWords));
#pragma unroll
  for (int i = 0; i < kGroups; ++i) read_words(to.tokens[i], stage + kWeightBytes + (32 * i + lane) * 16);
}

//@section prefetch
// Asks L2 for the weights of the CTA's first kPrefetch times 256 along K. It reads no value: L2 is where the preceding kernel's
// writes land, so it may come before the wait for that kernel.
__device__ __forceinline__ void prefetch(const TensorMap& map, int feature, int k, int end) {
#pragma unroll 1
  for (int box = 0; box < kPrefetch && k < end; ++box, k += 256) {
    tma_prefetch(map, kWeightsByK ? feature : k, kWeightsByK ? k : feature);
  }
}

//@end
// ---- from fragments to sums -----------------------------------------------------------------------------------------------
using Sums = float[kTiles][kGroups][4];  // as mma.cuh lays them out, features along its rows

// Row g of tile j is the lane group's feature 2 j, row g + 8 the next one.
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // 16 of the 32 k
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int word = j % 4, repeat = j / 4 * kPerRepeat;
      unsigned w[4];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {  // of k
        if constexpr (kWeightsByK) {
          const int row = repeat + 4 * half + 2 * pair;
          const unsigned even = stage.weights[row][word], odd = stage.weights[row + 1][word];
          w[2 * pair] = __byte_perm(even, odd, 0x5410);
          w[2 * pair + 1] = __byte_perm(even, odd, 0x7632);
        } else {
          w[2 * pair] = stage.weights[repeat + 2 * word][2 * half + pair];
          w[2 * pair + 1] = stage.weights[repeat + 2 * word + 1][2 * half + pair];
        }
      }
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const unsigned x[2] = {stage.tokens[i][2 * half], stage.tokens[i][2 * half + 1]};
        mma_m16n8k16<Element>::run(sums[j][i], w, x);
      }
    }
  }
}

// ---- from sums to D -------------------------------------------------------------------------------------------------------
// Writes the sums of a warp, a row for each token.
__device__ __forceinline__ void write_sums(const Sums& sums, unsigned area) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int token = 8 * i + lane % 4 * 2 + odd;
      if (kRows < BLOCK_TOKENS && token >= kRows) continue;
      const unsigned to = area + (token * kPitch + lane / 4 * kLaneFeatures) * 4;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + j / 4 * 256 + j % 4 * 8), "f"(sums[j][i][odd]), "f"(sums[j][i][2 + odd])
                     : "memory");
      }
    }
  }
}

// Four neighbouring features of a token; the index runs along the rows of D.
struct Quad {
  int token, feature;

  __device__ __forceinline__ explicit Quad(int index) {
    constexpr int kAcross = BLOCK_FEATURES / 4;
    token = kTokensAreRows ? index / kAcross : index % kRows;
    feature = (kTokensAreRows ? index % kAcross : index / kRows) * 4;
  }
};

__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// The sum of kParts quads that lie `stride` bytes apart, in independent chains of additions.
template <int kParts>
__device__ __forceinline__ float4 sum_of_parts(unsigned address, unsigned stride) {
  float4 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) parts[part] = load_shared(address + part * stride);
  constexpr int kChains = kParts < 4 ? kParts : 4;
#pragma unroll
  for (int part = kChains; part < kParts; ++part) parts[part % kChains] = add(parts[part % kChains], parts[part]);
#pragma unroll
  for (int part = 1; part < kChains; ++part) parts[0] = add(parts[0], parts[part]);
  return parts[0];
}

__device__ __forceinline__ void store(Element* __restrict__ d, const Quad& quad, float4 sum, int token, int feature, int tokens,
                                      int features) {
  const int row = token + quad.token, column = feature + quad.feature;
  if (kGuardTokens && row >= tokens) return;
  if constexpr (kTokensAreRows) {
    if (kGuardFeatures && column >= features) return;
    *reinterpret_cast<uint2*>(d + static_cast<long long>(row) * features + column) =
        make_uint2(pack<Element>(sum.x, sum.y), pack<Element>(sum.z, sum.w));
  } else {
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kGuardFeatures && column + i >= features) return;
      d[static_cast<long long>(column + i) * tokens + row] = round_to<Element>(values[i]);
    }
  }
}

//@section cluster
// Quads that the CTA of a rank stores. Where there are few, the last ranks have none.
__device__ __forceinline__ int share_of(int rank) { return max(min(kQuads - rank * kShare, kShare), 0); }

// Sends a quad to the CTA that stores it, into the part of the mailbox that belongs to this CTA.
__device__ __forceinline__ void push(float4 sum, int index, unsigned rank, unsigned smem) {
  const unsigned owner = index / kShare;
  const unsigned target = map_to_rank(smem + kMailbox + (rank * kShare + index % kShare) * 16, owner);
  store_remote_async(target, sum, map_to_rank(smem + kLanded, owner));
}

//@end
// ---- the kernel -----------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(kThreads, 1)  // no occupancy is worth a spilled address
    narrow_gemm(const Element* __restrict__ x, const Element* __restrict__ w, Element* __restrict__ d
//@section prefetch
                , const __grid_constant__ TensorMap map
//@section any-shape
                , int TOKENS, int FEATURES, int K
//@end
    ) {
//@section early-launch
  launch_dependents();
//@end
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned smem = smem_address(memory);
  const unsigned area = smem + threadIdx.x / 32 * kWarpBytes;
//@section cluster
  const unsigned rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(smem + kLanded, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(smem + kLanded, kClusterK * share_of(rank) * 16);
  }
  __syncwarp();
  cluster_arrive_relaxed();
//@section one-cta
  constexpr unsigned rank = 0;
//@end
  const int blocks = (TOKENS + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  const int tile = blockIdx.x / kClusterK;
  const int token = tile % blocks * BLOCK_TOKENS, feature = tile / blocks * BLOCK_FEATURES;
  const int steps = (K + kRoundK * kClusterK - 1) / (kRoundK * kClusterK);  // of each warp
  const int begin = rank * steps * kRoundK, end = min(begin + steps * kRoundK, K);
//@section shared-ring
  const int last_loads = max(steps - kStages, 0);  // the step that finds all loads under way
//@end
  Source source(x, w, token, feature, begin, end, TOKENS, FEATURES, K);
//@section prefetch
  if (threadIdx.x == 0) prefetch(map, feature, begin, end);
  __syncwarp();
//@section programmatic
  wait_for_dependencies();
//@section register-ring
  Stage ring[kStages];
#pragma unroll
  for (int s = 0; s < kStages; ++s) load(ring[s], source, s);
  source.advance(kStages);
//@section shared-ring
#pragma unroll 2
  for (int s = 0; s < kStages; ++s) {
    if (s < steps) copy(area + s * kStageBytes, source);
    source.advance(1);
    cp_async_commit();
  }
  unsigned slot = area;
//@section cluster
  cluster_wait();  // from here on every peer has its barrier ready
//@end
  Sums sums = {};
//@section register-ring
#pragma unroll 1
  for (int first = 0; first < steps; first += kStages) {
    const bool again = first + kStages < steps;
//@section late-register-ring
    if (!again) launch_dependents();  // all loads are under way, so the next kernel's prefetches find DRAM free
//@section register-ring
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      multiply(sums, ring[s]);
      if (again) load(ring[s], source, s);
    }
    source.advance(kStages);
  }
//@section shared-ring
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
//@section late-shared-ring
    if (step == last_loads) launch_dependents();  // all loads are under way, so the next kernel's prefetches find DRAM free
//@section shared-ring
    cp_async_wait<kStages - 1>();
    Stage stage;
    read(stage, slot);
    multiply(sums, stage);
    if (step < last_loads) copy(slot, source);
    source.advance(1);
    cp_async_commit();  // an empty group behind the last loads, so that the count of younger groups holds
    slot = step % kStages == kStages - 1 ? area : slot + kStageBytes;
  }
//@section shared-ring
  __syncwarp();  // sums lie over stages that other lanes of the warp have read
//@end
  write_sums(sums, area);
  __syncthreads();
#pragma unroll 1
  for (int index = threadIdx.x; index < kQuads; index += kThreads) {
    const Quad quad(index);
    const float4 sum = sum_of_parts<kWarps>(smem + (quad.token * kPitch + quad.feature) * 4, kWarpBytes);
//@section cluster
    push(sum, index, rank, smem);
//@section one-cta
    store(d, quad, sum, token, feature, TOKENS, FEATURES);
//@end
  }
//@section cluster
  // The CTA ends only behind this wait, so no push reaches a CTA that has ended.
  if (static_cast<int>(threadIdx.x) >= share_of(rank)) return;
  mbarrier_wait(smem + kLanded, 0);
#pragma unroll 1
  for (int index = threadIdx.x; index < share_of(rank); index += kThreads) {
    const float4 sum = sum_of_parts<kClusterK>(smem + kMailbox + index * 16, kShare * 16);
    store(d, Quad(rank * kShare + index), sum, token, feature, TOKENS, FEATURES);
  }
//@end
}
