"""CUDA C++ that every product kernel shares: copies into shared memory, and the loops over the terms of the sums.

An operand is a `Side`: `at(row, k, inside)` is where an element lies, and whether it is there; what is not is zero. `kWide`
neighbouring rows are copied at once; with `kAlongK` neighbouring threads copy neighbouring terms of one row.
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
"""

SIMT = """\
// A tile of `Rows` rows and `Depth` terms, kept by term in lines of Rows + 4 numbers.
template <class Side, int Rows, int Depth, int Threads>
__device__ __forceinline__ void load_tile(const Side& side, float* to, unsigned row0, unsigned k0) {
  constexpr int kWide = Side::kWide, kGroups = Rows * Depth / kWide, kLine = Side::kAlongK ? Depth : Rows / kWide;
#pragma unroll
  for (int i = 0; i < (kGroups + Threads - 1) / Threads; ++i) {
    const unsigned group = threadIdx.x + i * Threads;
    if (kGroups % Threads != 0 && group >= kGroups) break;
    unsigned line = group / kLine;
    if constexpr (kLine % 32 == 0) line = __shfl_sync(0xffffffffu, line, 0);  // one term a warp: its index is computed once
    const unsigned place = group % kLine, k = Side::kAlongK ? place : line, row = (Side::kAlongK ? line : place) * kWide;
    bool inside = Side::kTerms % Depth == 0 || k0 + k < Side::kTerms;
    const float* from = side.at(min(row0 + row, Side::kRows - kWide), k0 + k, inside);
    copy_async<4 * kWide>(to + k * (Rows + 4) + row, from, inside);
  }
}

// Adds `steps` tiles of products to the sums of a thread, which are TM / 4 by TN / 4 blocks of 4 by 4.
template <class A, class B, int M, int N, int Depth, int TM, int TN, int Stages>
__device__ __forceinline__ void multiply(const A& a, const B& b, unsigned m0, unsigned n0, unsigned ty, unsigned tx,
                                         unsigned k0, unsigned steps, float (&sum)[TM][TN]) {
  constexpr int kThreads = M / TM * (N / TN), kA = Depth * (M + 4), kStage = kA + Depth * (N + 4);
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
#pragma unroll
  for (int stage = 0; stage < Stages - 1; ++stage) {
    if (stage < steps) {
      load_tile<A, M, Depth, kThreads>(a, shared + stage * kStage, m0, k0 + stage * Depth);
      load_tile<B, N, Depth, kThreads>(b, shared + stage * kStage + kA, n0, k0 + stage * Depth);
    }
    commit_copies();
  }
  unsigned now = 0, next = Stages - 1;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    wait_for_copies<Stages - 2>();
    __syncthreads();
    if (step + Stages - 1 < steps) {
      const unsigned k = k0 + (step + Stages - 1) * Depth;
      load_tile<A, M, Depth, kThreads>(a, shared + next * kStage, m0, k);
      load_tile<B, N, Depth, kThreads>(b, shared + next * kStage + kA, n0, k);
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
