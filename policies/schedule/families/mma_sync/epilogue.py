"""CUDA text of the `mma_sync` family from accumulators to D: sums across warps and CTAs, rounding, stores."""

from contract.task import AccumulatorType
from policies.schedule.families.mma_sync.geometry import Geometry

_WIDEN = """\
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
"""

_EXCHANGE = """\
// Partial sums travel as the mma fragments they are: one float4 a thread and product, neighbours side by side.
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
"""

_CLEAR = """\
__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    float(&s)[4] = sums[f / kMmasN][f % kMmasN];
    s[0] = s[1] = s[2] = s[3] = 0.0f;
  }
}
"""

_ADD = """\
__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
"""

_SUM_SLICES = """\
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
"""

_SUM_SPLITS = """\
// Leaves this CTA's sums in its slot of the workspace. The last CTA of a tile to arrive adds up all slots in the order of
// the splits, so that the result does not depend on who was last; the others get false and are done.
__device__ __forceinline__ bool sum_splits(Sums& sums, float4* __restrict__ partials, unsigned* __restrict__ counters,
                                           const Place& place, int tile, int split) {
  constexpr int kSlot = kFragments * kTileThreads;
  constexpr int kUnroll = kFragments >= 16 ? 1 : 16 / kFragments;  // enough loads in flight to hide the trip to L2
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
"""

_FOR_PAIRS = """\
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {{
#pragma unroll
    for (int half = 0; half < 2; ++half) {{
      const int row = {row}place.row + 16 * i + 8 * half + place.lane / 4;
{row_guard}#pragma unroll
      for (int j = 0; j < kMmasN; ++j) {{
        const int column = {column}place.column + 8 * j + place.lane % 4 * 2;
        const float low = sums[i][j][2 * half], high = sums[i][j][2 * half + 1];
{store}
      }}
    }}
  }}
"""

_STORE_DIRECT = """\
// Rounds a warp's sums and stores them straight from registers.
__device__ __forceinline__ void store_tile(Element* __restrict__ d, const Sums& sums, const Place& place, int m0, int n0, int M,
                                           int N) {{
{idle}{loop}}}
"""

_STORE_STAGED = """\
// Rounds the sums into shared memory, then stores whole 16-byte chunks along the rows of D.
__device__ __forceinline__ void store_tile(Element* __restrict__ d, const Sums& sums, unsigned char* memory, const Place& place,
                                           int m0, int n0, int M, int N) {{
  __syncthreads();  // the staged tile lies over operands that other warps may still be reading
{loop}  __syncthreads();
  constexpr int kRowChunks = BLOCK_N / 8;
#pragma unroll
  for (int first = 0; first < BLOCK_M * kRowChunks; first += kThreads) {{
    const int chunk = first + threadIdx.x;
    if (BLOCK_M * kRowChunks % kThreads != 0 && chunk >= BLOCK_M * kRowChunks) break;
    const int row = chunk / kRowChunks, column = chunk % kRowChunks * 8;
{guard}    *reinterpret_cast<uint4*>(d + (m0 + row) * N + n0 + column) =
        *reinterpret_cast<const uint4*>(memory + swizzled<BLOCK_N>(row, column));
  }}
}}
"""

_STORE_CLUSTER = """\
// Sums the tiles of the cluster's CTAs, each CTA its share of the rows, in the order of the splits, and stores D.
__device__ __forceinline__ void store_cluster_sum(Element* __restrict__ d, const Sums& sums, unsigned char* memory,
                                                  const Place& place, int m0, int n0, int M, int N) {{
  float* staged = reinterpret_cast<float*>(memory);
  __syncthreads();  // the staged tile lies over operands that other warps may still be reading
{loop}  cluster_sync();
  constexpr int kRowChunks = BLOCK_N / 8;
  const unsigned smem = smem_address(memory);
  for (int chunk = cluster_rank() * kThreads + threadIdx.x; chunk < BLOCK_M * kRowChunks; chunk += kSplits * kThreads) {{
    const int row = chunk / kRowChunks, column = chunk % kRowChunks * 8;
    float4 low = make_float4(0, 0, 0, 0), high = low;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {{
      const unsigned remote = map_to_rank(smem + (row * kStagedRow + column) * sizeof(float), split);
      low = add(low, load_remote(remote));
      high = add(high, load_remote(remote + sizeof(float4)));
    }}
{store}  }}
  cluster_sync();  // no CTA may end while another still reads its shared memory
}}
"""


def write_reductions(geometry: Geometry) -> str:
    """What stands between a warp's accumulators and the sums of the whole tile."""
    s = geometry.schedule
    parts = [_WIDEN] if geometry.task.accumulate is AccumulatorType.F16 else []
    parts += [_EXCHANGE] if s.warps_k > 1 or s.reduction == "workspace" else []
    parts += [_SUM_SLICES] if s.warps_k > 1 else []
    parts += [_CLEAR, _SUM_SPLITS] if s.reduction == "workspace" else []
    return "\n".join(parts)


def write_stores(geometry: Geometry) -> str:
    if geometry.schedule.reduction == "cluster":
        return _ADD + "\n" + _store_cluster(geometry)
    if geometry.schedule.epilogue == "staged":
        return _store_staged(geometry)
    return _store_direct(geometry)


def _store_direct(geometry: Geometry) -> str:
    if geometry.task.n % 2:
        store = """\
        if (column < N) d[row * N + column] = round_to<Element>(low);
        if (column + 1 < N) d[row * N + column + 1] = round_to<Element>(high);"""
    else:
        guard = "if (column < N) " if geometry.d_guarded else ""
        store = f"        {guard}*reinterpret_cast<unsigned*>(d + row * N + column) = pack<Element>(low, high);"
    row_guard = "      if (row >= M) continue;\n" if geometry.d_guarded else ""
    loop = _FOR_PAIRS.format(row="m0 + ", column="n0 + ", row_guard=row_guard, store=store)
    idle = "  if (place.slice > 0) return;\n" if geometry.schedule.warps_k > 1 else ""
    return _STORE_DIRECT.format(idle=idle, loop=loop)


def _store_staged(geometry: Geometry) -> str:
    store = "        *reinterpret_cast<unsigned*>(memory + swizzled<BLOCK_N>(row, column)) = pack<Element>(low, high);"
    guard = "    if (m0 + row >= M || n0 + column >= N) continue;\n" if geometry.d_guarded else ""
    return _STORE_STAGED.format(loop=_staging_loop(geometry, store), guard=guard)


def _store_cluster(geometry: Geometry) -> str:
    store = "        *reinterpret_cast<float2*>(staged + row * kStagedRow + column) = make_float2(low, high);"
    return _STORE_CLUSTER.format(loop=_staging_loop(geometry, store), store=_store_chunk(geometry))


def _staging_loop(geometry: Geometry, store: str) -> str:
    """Writes a warp's sums to shared memory; only slice 0 holds them."""
    loop = _FOR_PAIRS.format(row="", column="", row_guard="", store=store)
    return f"  if (place.slice == 0) {{\n{loop}  }}\n" if geometry.schedule.warps_k > 1 else loop


def _store_chunk(geometry: Geometry) -> str:
    """Stores the eight neighbours `low`, `high` at (row, column) of the tile."""
    if geometry.task.n % 8 == 0:
        guard = "    if (m0 + row >= M || n0 + column >= N) continue;\n" if geometry.d_guarded else ""
        return f"""\
{guard}    *reinterpret_cast<uint4*>(d + (m0 + row) * N + n0 + column) =
        make_uint4(pack<Element>(low.x, low.y), pack<Element>(low.z, low.w), pack<Element>(high.x, high.y),
                   pack<Element>(high.z, high.w));
"""
    return """\
    if (m0 + row >= M) continue;
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (n0 + column + i < N) d[(m0 + row) * N + n0 + column + i] = round_to<Element>(values[i]);
    }
"""
