"""CUDA text of the `mma_sync` family from global memory to accumulators: tile copies, fragments, the K loop."""

from contract.task import Layout
from policies.schedule.families.mma_sync.geometry import Geometry, copy_width

_LOAD_VECTORS = """\
// Copies the kRows x kColumns tile at (row0, column0) of a row-major matrix into swizzled shared memory, kVector elements a
// copy. With kGuarded, what lies outside the matrix becomes zero; kVector divides `columns`, so a copy is never half outside.
template <int kRows, int kColumns, int kVector, bool kGuarded>
__device__ __forceinline__ void load_tile(unsigned smem, const Element* __restrict__ matrix, int row0, int column0, int rows,
                                          int columns) {
  constexpr int kRowCopies = kColumns / kVector;
  constexpr int kAcross = kRowCopies < kThreads ? kRowCopies : kThreads;  // threads side by side along a row
  constexpr int kDown = kThreads / kAcross;                              // rows that the CTA copies at a time
  const int row = threadIdx.x / kAcross, column = threadIdx.x % kAcross * kVector;
  if (kThreads % kAcross != 0 && row >= kDown) return;
  const Element* source = matrix + static_cast<long long>(row0 + row) * columns + column0 + column;
  hide(source);  // else the compiler keeps the address of every copy in registers through the whole K loop
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
"""

_LOAD_SCALARS = """\
// As load_tile for rows of an odd number of elements, which no asynchronous copy can follow: plain loads, one element each.
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
"""

_FRAGMENTS_HEAD = """\
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
    const int row = place.row + 16 * i + place.lane % 16;
    ldmatrix_x4(smem_a + swizzled<BLOCK_K>(row, k + place.lane / 16 * 8), a[0], a[1], a[2], a[3]);
  }
"""

_FRAGMENTS_NN = """\
  // Rows of B in shared memory run along N, so the 8x8 tiles are transposed on their way into registers.
#pragma unroll
  for (int j = 0; j < kMmasN; j += 2) {
    const int column = place.column + 8 * j + place.lane / 16 * 8;
    ldmatrix_x4_trans(smem_b + swizzled<BLOCK_N>(k + place.lane % 16, column), fragments.b[j][0], fragments.b[j][1],
                      fragments.b[j + 1][0], fragments.b[j + 1][1]);
  }
}
"""

_FRAGMENTS_TN = """\
#pragma unroll
  for (int j = 0; j < kMmasN; j += 2) {
    const int row = place.column + 8 * j + place.lane / 16 * 8 + place.lane % 8;
    ldmatrix_x4(smem_b + swizzled<BLOCK_K>(row, k + place.lane / 8 % 2 * 8), fragments.b[j][0], fragments.b[j][1],
                fragments.b[j + 1][0], fragments.b[j + 1][1]);
  }
}
"""

_MULTIPLY_STEP = """
__device__ __forceinline__ void multiply_step(Accumulators& accumulators, const Fragments& fragments) {
#pragma unroll
  for (int i = 0; i < kMmasM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmasN; ++j) mma_m16n8k16<Element>::run(accumulators[i][j], fragments.a[i], fragments.b[j]);
  }
}
"""

_SIGNATURE = """\
__device__ __forceinline__ void multiply(Accumulators& accumulators, unsigned smem, const Place& place,
                                         const Element* __restrict__ a, const Element* __restrict__ b, int m0, int n0,
                                         int k_begin, int k_blocks, int M, int N, int K) {
"""

_ONE_SHOT = """\
// The whole K range of the CTA is one block: one trip to memory, no loop.
{signature}\
  load_block(smem, a, b, m0, n0, k_begin, M, N, K);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  Fragments fragments[2];
  const int k_slice = place.slice * kStepsK * 16;
  load_fragments(fragments[0], smem, smem + kBytesA, place, k_slice);
#pragma unroll
  for (int step = 0; step < kStepsK; ++step) {{
    if (step + 1 < kStepsK) {{
      load_fragments(fragments[(step + 1) % 2], smem, smem + kBytesA, place, k_slice + (step + 1) * 16);
    }}
    multiply_step(accumulators, fragments[step % 2]);
  }}
}}
"""

_PIPELINED = """\
// K blocks travel through a ring of kStages buffers. While block i is multiplied, the copies of blocks up to i + kStages - 1
// are under way, and the fragments of the next step are loaded while those of this one are multiplied.
{signature}\
#pragma unroll
  for (int block = 0; block < kStages - 1; ++block) {{
    if (block < k_blocks) load_block(smem + block * kBytesStage, a, b, m0, n0, k_begin + block * BLOCK_K, M, N, K);
    cp_async_commit();  // empty groups too, so that counting groups counts blocks
  }}
  cp_async_wait<kStages - 2>();
  __syncthreads();

  Fragments fragments[2];
  const int k_slice = place.slice * kStepsK * 16;
  unsigned reading = smem;
  unsigned writing = smem + (kStages - 1) * kBytesStage;
  const unsigned end = smem + kStages * kBytesStage;
  load_fragments(fragments[0], reading, reading + kBytesA, place, k_slice);

{hint}  for (int block = 0; block < k_blocks; ++block) {{
#pragma unroll
    for (int step = 0; step < kStepsK; ++step) {{
      if (step == 0) {{
        // The buffer being filled held block - 1, which every warp left before the last barrier.
        const int ahead = block + kStages - 1;
        if (ahead < k_blocks) load_block(writing, a, b, m0, n0, k_begin + ahead * BLOCK_K, M, N, K);
        cp_async_commit();
        writing = writing + kBytesStage == end ? smem : writing + kBytesStage;
      }}
      if (step == kStepsK - 1) {{
        cp_async_wait<kStages - 2>();
        __syncthreads();
        reading = reading + kBytesStage == end ? smem : reading + kBytesStage;
      }}
      // After the very last step this reads a buffer that nobody writes any more; its values are never used.
      const int next = (step + 1) % kStepsK;
      load_fragments(fragments[(step + 1) % 2], reading, reading + kBytesA, place, k_slice + next * 16);
      multiply_step(accumulators, fragments[step % 2]);
    }}
{swap}  }}
}}
"""


def write_loads(geometry: Geometry) -> str:
    """The tile copies that the task's alignment calls for, and `load_block`, which brings one K block of both operands."""
    widths = {copy_width(geometry.a_columns), copy_width(geometry.b_columns)}
    parts = [_LOAD_VECTORS] if widths - {1} else []
    parts += [_LOAD_SCALARS] if 1 in widths else []
    return "\n".join([*parts, _load_block(geometry)])


def _load_block(geometry: Geometry) -> str:
    nn = geometry.task.layout is Layout.NN
    b_tile, b_place, b_shape = ("BLOCK_K, BLOCK_N", "k, n0", "K, N") if nn else ("BLOCK_N, BLOCK_K", "n0, k", "N, K")
    load_a = _load("a", "smem", "BLOCK_M, BLOCK_K", "m0, k", "M, K", copy_width(geometry.a_columns), geometry.a_guarded)
    load_b = _load("b", "smem + kBytesA", b_tile, b_place, b_shape, copy_width(geometry.b_columns), geometry.b_guarded)
    return f"""\
// Brings the K block that starts at `k` into the stage at `smem`: the tile of A, then that of B.
__device__ __forceinline__ void load_block(unsigned smem, const Element* __restrict__ a, const Element* __restrict__ b, int m0,
                                           int n0, int k, int M, int N, int K) {{
  {load_a}
  {load_b}
}}
"""


def _load(name: str, smem: str, tile: str, place: str, shape: str, width: int, guarded: bool) -> str:
    if width == 1:
        return f"load_tile_odd<{tile}>({smem}, {name}, {place}, {shape});"
    return f"load_tile<{tile}, {width}, {str(guarded).lower()}>({smem}, {name}, {place}, {shape});"


def write_fragments(geometry: Geometry) -> str:
    b_part = _FRAGMENTS_NN if geometry.task.layout is Layout.NN else _FRAGMENTS_TN
    return _FRAGMENTS_HEAD + b_part + _MULTIPLY_STEP


def write_mainloop(geometry: Geometry) -> str:
    if geometry.schedule.stages == 1:
        return _ONE_SHOT.format(signature=_SIGNATURE)
    odd = geometry.schedule.block_k // (16 * geometry.schedule.warps_k) % 2 == 1
    hint = f"#pragma unroll {2 if odd else 1}\n"
    swap = (
        "    fragments[0] = fragments[1];  // an odd number of steps; the unrolled loop renames instead of copying\n"
        if odd
        else ""
    )
    return _PIPELINED.format(signature=_SIGNATURE, hint=hint, swap=swap)
