"""CUDA C++ that every product kernel shares: copies into shared memory, and the loops over the terms of the sums.

An operand is a `Side`: `at(row, step, line, inside)` is where an element lies, and whether it is there; what is not is zero. A
step is a tile of terms, of which `line` is one. `kWide` neighbouring rows are copied at once; with `kAlongK` neighbouring
threads copy neighbouring terms of one row, and in half precision `kWide` of them at once. Steps that are not `used` are left
out.
"""

COPIES = """\
// Copies `Bytes` into shared memory while the caller goes on; zeros where nothing is `inside`.
template <int Bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int count = inside ? Bytes : 0;
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(Bytes), "r"(count) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}
struct PlaceInTile {
  unsigned line, place;
};
// Which group of neighbours a thread copies as its i-th of a tile. Those of a thread lie at constant distances where they can.
template <int Line, int Threads>
__device__ __forceinline__ PlaceInTile place_in_tile(unsigned i) {
  if constexpr (Threads == Line) return {i, threadIdx.x};
  if constexpr (Threads % Line == 0) return {threadIdx.x / Line + i * (Threads / Line), threadIdx.x % Line};
  if constexpr (Line % Threads == 0) return {i / (Line / Threads), threadIdx.x + i % (Line / Threads) * Threads};
  return {(threadIdx.x + i * Threads) / Line, (threadIdx.x + i * Threads) % Line};
}
// The first step from `step` on, and below `end`, whose terms are not all zeros.
template <class Side>
__device__ __forceinline__ unsigned used_from(const Side& side, unsigned step, unsigned end) {
  if constexpr (!Side::kAllUsed)
    while (step < end && !side.used(step)) ++step;
  return step;
}
"""

F32_TILES = """\
// A tile of `Rows` rows and `Depth` terms, kept by term in lines of Rows + Pad numbers.
template <class Side, int Rows, int Depth, int Threads, int Pad>
__device__ __forceinline__ void load_tile(const Side& side, float* to, unsigned row0, unsigned step) {
  constexpr int kWide = Side::kWide, kGroups = Rows * Depth / kWide, kLine = Side::kAlongK ? Depth : Rows / kWide;
#pragma unroll
  for (int i = 0; i < (kGroups + Threads - 1) / Threads; ++i) {
    const unsigned group = threadIdx.x + i * Threads;
    if (kGroups % Threads != 0 && group >= kGroups) break;
    const auto [line, place] = place_in_tile<kLine, Threads>(i);
    const unsigned k = Side::kAlongK ? place : line, row = (Side::kAlongK ? line : place) * kWide;
    bool inside = Side::kTerms % Depth == 0 || step * Depth + k < Side::kTerms;
    const float* from = side.at(min(row0 + row, Side::kRows - kWide), step, k, inside);
    copy_async<4 * kWide>(to + k * (Rows + Pad) + row, from, inside);
  }
}
"""

SIMT = """\
// Adds the products of steps, from `step` to below `end`, to the sums of a thread, which are TM / 4 by TN / 4 blocks of 4 by 4.
template <class A, class B, int M, int N, int Depth, int TM, int TN, int Stages>
__device__ __forceinline__ void multiply(const A& a, const B& b, unsigned m0, unsigned n0, unsigned ty, unsigned tx,
                                         unsigned step, unsigned end, float (&sum)[TM][TN]) {
  constexpr int kThreads = M / TM * (N / TN), kA = Depth * (M + 4), kStage = kA + Depth * (N + 4);
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  unsigned ahead = step = used_from(a, step, end), now = 0, next = Stages - 1;
#pragma unroll
  for (int stage = 0; stage < Stages - 1; ++stage) {
    if (ahead < end) {
      load_tile<A, M, Depth, kThreads, 4>(a, shared + stage * kStage, m0, ahead);
      load_tile<B, N, Depth, kThreads, 4>(b, shared + stage * kStage + kA, n0, ahead);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
  }
#pragma unroll 1
  for (; step < end; step = used_from(a, step + 1, end)) {
    wait_for_copies<Stages - 2>();
    __syncthreads();
    if (ahead < end) {
      load_tile<A, M, Depth, kThreads, 4>(a, shared + next * kStage, m0, ahead);
      load_tile<B, N, Depth, kThreads, 4>(b, shared + next * kStage + kA, n0, ahead);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
    const float *as = shared + now * kStage + ty * 4, *bs = shared + now * kStage + kA + tx * 4;
#pragma unroll
    for (int k = 0; k < Depth; ++k) {
      Pack<float, 4> p[TM / 4], q[TN / 4];
#pragma unroll
      for (int i = 0; i < TM / 4; ++i) p[i] = load_pack<4>(as + k * (M + 4) + i * (M / TM * 4));
#pragma unroll
      for (int j = 0; j < TN / 4; ++j) q[j] = load_pack<4>(bs + k * (N + 4) + j * (N / TN * 4));
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(p[i / 4].v[i % 4], q[j / 4].v[j % 4], sum[i][j]);
    }
    now = now + 1 == Stages ? 0 : now + 1;
    next = next + 1 == Stages ? 0 : next + 1;
  }
}
"""

DOUBLES = """\
// A block of 16 by 8 sums in f64, to which the products of 16 by 8 and 8 by 8 numbers are added.
__device__ __forceinline__ void multiply_block(double (&c)[4], double a0, double a1, double a2, double a3, double b0,
                                               double b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
}

// The numbers that a lane gives to the blocks of a warp, of two of eight terms. Which row of a block is which of the tile is
// free: a lane reads four neighbours at once, and the lanes that read together meet all banks.
template <int WM, int WN>
struct Numbers {
  Pack<float, 4> a[2][WM / 32], b[2][WN / 32];
  __device__ __forceinline__ void load(const float* as, const float* bs, int line_a, int line_b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < WM / 32; ++i) a[half][i] = load_pack<4>(as + half * 4 * line_a + i * 32);
#pragma unroll
      for (int j = 0; j < WN / 32; ++j) b[half][j] = load_pack<4>(bs + half * 4 * line_b + j * 32);
    }
  }
};

// Adds the products of steps, from `step` to below `end`, to the sums of a thread. The sums of all steps are kept in f64.
template <class A, class B, int M, int N, int Depth, int WM, int WN, int Stages>
__device__ __forceinline__ void multiply_doubles(const A& a, const B& b, unsigned m0, unsigned n0, unsigned wm, unsigned wn,
                                                 unsigned step, unsigned end, float (&sum)[WM / 8][WN / 4]) {
  constexpr int kThreads = M / WM * (N / WN) * 32, kLineA = M + 8, kLineB = N + 8, kA = Depth * kLineA;
  constexpr int kStage = kA + Depth * kLineB;
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  const unsigned place = threadIdx.x % 32 / 4 * 4, term = threadIdx.x % 4;
  double sums[WM / 16][WN / 8][4] = {};
  unsigned ahead = step = used_from(a, step, end), now = 0, next = Stages - 1;
#pragma unroll
  for (int stage = 0; stage < Stages - 1; ++stage) {
    if (ahead < end) {
      load_tile<A, M, Depth, kThreads, 8>(a, shared + stage * kStage, m0, ahead);
      load_tile<B, N, Depth, kThreads, 8>(b, shared + stage * kStage + kA, n0, ahead);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
  }
#pragma unroll 1
  for (; step < end; step = used_from(a, step + 1, end)) {
    wait_for_copies<Stages - 2>();
    __syncthreads();
    const float* as = shared + now * kStage + term * kLineA + wm + place;
    const float* bs = shared + now * kStage + kA + term * kLineB + wn + place;
    Numbers<WM, WN> numbers[2];
    numbers[0].load(as, bs, kLineA, kLineB);
    if (ahead < end) {
      load_tile<A, M, Depth, kThreads, 8>(a, shared + next * kStage, m0, ahead);
      load_tile<B, N, Depth, kThreads, 8>(b, shared + next * kStage + kA, n0, ahead);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
#pragma unroll
    for (int k = 0; k < Depth / 8; ++k) {
      if (k + 1 < Depth / 8) numbers[(k + 1) % 2].load(as + (k + 1) * 8 * kLineA, bs + (k + 1) * 8 * kLineB, kLineA, kLineB);
      const Numbers<WM, WN>& own = numbers[k % 2];
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
        const double b0 = own.b[0][j / 4].v[j % 4], b1 = own.b[1][j / 4].v[j % 4];
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
          const int low = 2 * i % 4;
          multiply_block(sums[i][j], own.a[0][i / 2].v[low], own.a[0][i / 2].v[low + 1], own.a[1][i / 2].v[low],
                         own.a[1][i / 2].v[low + 1], b0, b1);
        }
      }
    }
    now = now + 1 == Stages ? 0 : now + 1;
    next = next + 1 == Stages ? 0 : next + 1;
  }
  // Block column 2 * term + e of block j is column 8 * term + 4 * e + j of 32.
#pragma unroll
  for (int i = 0; i < WM / 8; ++i)
#pragma unroll
    for (int j = 0; j < WN / 4; ++j)
      sum[i][j] = static_cast<float>(sums[i / 2][j / 8 * 4 + j % 4][i % 2 * 2 + j % 8 / 4]);
}
"""

EXCHANGE = """\
// From four neighbouring sums of one row a thread to sums of four rows, whose neighbours are those of the next thread: a warp
// holds 4 rows of 32 columns at a time. What it stores then lies together, wherever a line begins.
template <int TM, int TN>
__device__ __forceinline__ void exchange(float (&sum)[TM][TN]) {
  extern __shared__ float4 shared_memory[];
  const unsigned lane = threadIdx.x % 32;
  float* const own = reinterpret_cast<float*>(shared_memory) + threadIdx.x / 32 * 128;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      store_pack(own + lane * 4, Pack<float, 4>{{sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]}});
      __syncwarp();
#pragma unroll
      for (int row = 0; row < 4; ++row) sum[i][j + row] = own[row * 32 + lane];
      __syncwarp();
    }
}
"""

MATRIX = """\
// A tile of half-precision numbers in shared memory, in lines along k or along the rows, as they lie in memory. Places of 16
// bytes are exchanged within eight lines, so that eight threads of ldmatrix that read one place of them meet all banks.
template <class Side, int Rows, int Depth>
struct Tile {
  static constexpr int kLine = Side::kAlongK ? Depth : Rows, kElements = Rows * Depth;
  static constexpr int kPlaces = kLine / 8, kShift = kPlaces >= 8 ? 0 : kPlaces == 4 ? 1 : 2;
  static __device__ __forceinline__ unsigned offset(unsigned line, unsigned place) {
    return line * kLine + ((place ^ ((line >> kShift) % (kPlaces < 8 ? kPlaces : 8))) * 8);
  }
  static __device__ __forceinline__ unsigned element(unsigned line, unsigned at) { return offset(line, at / 8) + at % 8; }
};

// Copies a tile, asynchronously where Side says that eight numbers lie together; else through registers: `begin` loads what
// `finish` stores.
template <class Side, int Rows, int Depth, int Threads>
struct TileCopy {
  using T = Tile<Side, Rows, Depth>;
  using Element = typename Side::Element;
  static constexpr int kWide = Side::kWide, kGroups = Rows * Depth / kWide, kLine = T::kLine / kWide;
  static constexpr int kEach = (kGroups + Threads - 1) / Threads;
  unsigned short held[kWide == 1 ? kEach : 1];

  __device__ __forceinline__ void begin(const Side& side, Element* to, unsigned row0, unsigned step) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned group = threadIdx.x + i * Threads;
      if (kGroups % Threads != 0 && group >= kGroups) break;
      const auto [line, place] = place_in_tile<kLine, Threads>(i);
      const unsigned at = place * kWide, k = Side::kAlongK ? at : line, row = Side::kAlongK ? line : at;
      bool inside = Side::kTerms % Depth == 0 || step * Depth + k < Side::kTerms;
      const Element* from = side.at(min(row0 + row, Side::kRows - (Side::kAlongK ? 1 : kWide)), step, k, inside);
      if constexpr (kWide == 8)
        copy_async<16>(to + T::offset(line, at / 8), from, inside);
      else
        held[i] = inside ? *reinterpret_cast<const unsigned short*>(from) : 0;
    }
  }
  __device__ __forceinline__ void finish(Element* to) const {
    if constexpr (kWide == 1) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const unsigned group = threadIdx.x + i * Threads;
        if (kGroups % Threads != 0 && group >= kGroups) break;
        *reinterpret_cast<unsigned short*>(to + T::element(group / kLine, group % kLine)) = held[i];
      }
    }
  }
};

// Four matrices of 8 by 8 from rows `row` and `row + 8`, terms `k` and `k + 8`. `pairs_of_k`: the second is the next terms of
// the same rows, as B needs them, instead of the next rows.
template <class Side, int Rows, int Depth>
__device__ __forceinline__ void load_matrices(const typename Side::Element* tile, unsigned row, unsigned k, bool pairs_of_k,
                                              unsigned (&to)[4]) {
  using T = Tile<Side, Rows, Depth>;
  const unsigned which = threadIdx.x % 32 / 8, in = threadIdx.x % 8;
  const unsigned of_row = pairs_of_k ? which / 2 : which % 2, of_k = pairs_of_k ? which % 2 : which / 2;
  const unsigned place = Side::kAlongK ? T::offset(row + of_row * 8 + in, k / 8 + of_k)
                                       : T::offset(k + of_k * 8 + in, row / 8 + of_row);
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile + place));
  if constexpr (Side::kAlongK)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// A block of 16 by 8 sums, of which a thread holds two neighbours of two rows.
__device__ __forceinline__ void multiply_block(const unsigned (&p)[4], const unsigned* q, float* upper, float* lower) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
}

// Adds the products of steps, from `step` to below `end`, to the sums of a thread.
template <class A, class B, int M, int N, int Depth, int WM, int WN, int Stages>
__device__ __forceinline__ void multiply_matrices(const A& a, const B& b, unsigned m0, unsigned n0, unsigned wm, unsigned wn,
                                                  unsigned step, unsigned end, float (&sum)[WM / 8][WN / 4]) {
  using Element = typename A::Element;
  constexpr int kThreads = M / WM * (N / WN) * 32, kA = M * Depth, kStage = kA + N * Depth;
  extern __shared__ float4 shared_memory[];
  Element* const shared = reinterpret_cast<Element*>(shared_memory);
  TileCopy<A, M, Depth, kThreads> copy_a;
  TileCopy<B, N, Depth, kThreads> copy_b;
  unsigned ahead = step = used_from(a, step, end), now = 0, next = Stages - 1;
#pragma unroll
  for (int stage = 0; stage < Stages - 1; ++stage) {
    if (ahead < end) {
      Element* const to = shared + stage * kStage;
      copy_a.begin(a, to, m0, ahead);
      copy_b.begin(b, to + kA, n0, ahead);
      copy_a.finish(to);
      copy_b.finish(to + kA);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
  }
#pragma unroll 1
  for (; step < end; step = used_from(a, step + 1, end)) {
    wait_for_copies<Stages - 2>();
    __syncthreads();
    const bool more = ahead < end;
    Element* const to = shared + next * kStage;
    if (more) {
      copy_a.begin(a, to, m0, ahead);
      copy_b.begin(b, to + kA, n0, ahead);
      ahead = used_from(a, ahead + 1, end);
    }
    commit_copies();
    const Element *as = shared + now * kStage, *bs = as + kA;
#pragma unroll
    for (int k = 0; k < Depth; k += 16) {
      unsigned p[WM / 16][4], q[WN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) load_matrices<A, M, Depth>(as, wm + i * 16, k, false, p[i]);
#pragma unroll
      for (int j = 0; j < WN / 16; ++j) load_matrices<B, N, Depth>(bs, wn + j * 16, k, true, q[j]);
#pragma unroll
      for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
          multiply_block(p[i], q[j / 2] + j % 2 * 2, sum[2 * i] + 2 * j, sum[2 * i + 1] + 2 * j);
    }
    if (more) {
      copy_a.finish(to);
      copy_b.finish(to + kA);
    }
    now = now + 1 == Stages ? 0 : now + 1;
    next = next + 1 == Stages ? 0 : next + 1;
  }
}
"""

WARPGROUPS = """\
// Products of 128 by N by warpgroup instructions. TMA brings blocks of 64 terms into a ring of stages: a ninth warp loads, two
// warpgroups multiply 64 rows each. With `AlongK` the rows of an operand's matrix in memory lie along k.
struct Ring {
  template <bool AlongK, int Rows>
  static __device__ __forceinline__ void load(unsigned to, const cudal2::TensorMap& map, unsigned ready, int row, int k) {
    if constexpr (AlongK) {
      cudal2::tma_load(to, map, ready, k, row);
    } else {
#pragma unroll
      for (int i = 0; i < Rows / 64; ++i) cudal2::tma_load(to + i * 64 * 128, map, ready, row + 64 * i, k);
    }
  }
};

// Places of both operands are (row, first term) in their matrices. The first product writes the sums: zeros that were stored
// before it might be stored after its fence. False in the warp that loads, which is then done.
template <class Element, int N, int Stages, bool AlongA, bool AlongB>
__device__ __forceinline__ bool multiply_warpgroups(const cudal2::TensorMap& a, const cudal2::TensorMap& b, int row_a, int k_a,
                                                    int row_b, int k_b, unsigned steps, float (&sum)[N / 2]) {
  using Product = cudal2::wgmma_shared<Element, float, N, AlongB ? 0 : 1, AlongA ? 0 : 1>;
  constexpr unsigned kBox = 64 * 128, kBytesA = 2 * kBox, kStage = kBytesA + N / 64 * kBox;
  extern __shared__ float4 shared_memory[];
  const unsigned ring = cudal2::align_up<1024>(cudal2::smem_address(shared_memory));
  const unsigned full = ring + Stages * kStage, empty = full + 8 * Stages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Stages; ++s) {
      cudal2::mbarrier_init(full + 8 * s, 1);
      cudal2::mbarrier_init(empty + 8 * s, 8);
    }
    cudal2::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    if (cudal2::elect_one())
      for (unsigned step = 0; step < steps; ++step) {
        const unsigned stage = ring + step % Stages * kStage, ready = full + 8 * (step % Stages);
        cudal2::mbarrier_wait(empty + 8 * (step % Stages), step / Stages % 2 ^ 1);  // passes at once in the first round
        cudal2::mbarrier_arrive_expect(ready, kStage);
        Ring::load<AlongA, 128>(stage, a, ready, row_a, k_a + step * 64);
        Ring::load<AlongB, N>(stage + kBytesA, b, ready, row_b, k_b + step * 64);
      }
    return false;
  }
  const unsigned long long a_tile = cudal2::wgmma_descriptor<128>(ring + threadIdx.x / 128 * kBox, kBox, 1024);
  const unsigned long long b_tile = cudal2::wgmma_descriptor<128>(ring + kBytesA, kBox, 1024);
  constexpr unsigned kStepA = AlongA ? 32 : 16 * 128, kStepB = AlongB ? 32 : 16 * 128;  // bytes to the next 16 terms
  for (unsigned step = 0; step < steps; ++step) {
    const unsigned stage = step % Stages * kStage;
    cudal2::mbarrier_wait(full + 8 * (step % Stages), step / Stages % 2);
    cudal2::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      Product::run(sum, cudal2::wgmma_advance(a_tile, stage + i * kStepA), cudal2::wgmma_advance(b_tile, stage + i * kStepB),
                   step + i > 0);
    cudal2::wgmma_commit();
    cudal2::wgmma_wait<1>();  // the block before has been read
    if (step > 0 && threadIdx.x % 32 == 0) cudal2::mbarrier_arrive(empty + 8 * ((step - 1) % Stages));
  }
  cudal2::wgmma_pin(sum);
  cudal2::wgmma_wait<0>();
  cudal2::wgmma_pin(sum);
  if (steps == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0;
  }
  return true;
}
"""
WARPGROUP_HEADERS = ("shared", "elect", "mbarrier", "tma", "wgmma")
