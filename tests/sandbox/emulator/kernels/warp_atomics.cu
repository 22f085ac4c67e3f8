/* cudal2: {"arch": "sm_80", "atomics": true, "workspace": {"bytes": "4*M*N", "zero": true}, "launches": [
     {"entry": "add_partials", "grid": ["ceil(N/32)", "ceil(M/4)", 1], "block": [128, 1, 1],
      "args": [{"tensor": "A"}, {"tensor": "B"}, {"workspace": 0}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]},
     {"entry": "round_sums", "grid": ["ceil(M*N/128)", 1, 1], "block": [128, 1, 1],
      "args": [{"workspace": 0}, {"tensor": "D", "access": "write"}, {"scalar": "M*N", "type": "i64"}]}]} */
// D = A B, B row-major, in two launches: four warps of a CTA take turns over blocks of 32 along K, lanes hand A around by
// shuffles, and every warp adds what it has to sums in the workspace, in whatever order; the second launch rounds them.
#include <cuda_fp16.h>

constexpr int kRows = 4, kWarps = 4;
constexpr unsigned kAll = 0xFFFFFFFFu;

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    add_partials(const __half* a, const __half* b, float* sums, int m, int n, int k) {
  __shared__ unsigned blocks_done;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = blockIdx.y * kRows, column = blockIdx.x * 32 + lane;
  const unsigned inside = __ballot_sync(kAll, column < n);
  if (threadIdx.x == 0) blocks_done = 0;
  __syncthreads();
  float partial[kRows] = {};
  // A vote of the whole warp ends the loop, so that no lane is missing in the shuffles.
  for (int k0 = 32 * warp; __any_sync(kAll, k0 + lane < k); k0 += 32 * kWarps) {
    const int valid = __popc(__ballot_sync(kAll, k0 + lane < k));
    float mine[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mine[r] = row0 + r < m && lane < valid ? __half2float(a[(row0 + r) * k + k0 + lane]) : 0.0f;
    }
    for (int i = 0; i < valid; ++i) {
      const float right = inside >> lane & 1 ? __half2float(b[(k0 + i) * n + column]) : 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) partial[r] += __shfl_sync(kAll, mine[r], i) * right;
    }
    if (lane == 0) atomicAdd(&blocks_done, 1u);
  }
  __syncthreads();
  // A warp that had no block has nothing to add; with a single block in all, the others would only add zeros.
  if (blocks_done == 1 && warp > 0) return;
  if (column >= n) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r < m) atomicAdd(sums + (row0 + r) * n + column, partial[r]);
  }
}

extern "C" __global__ void __launch_bounds__(128) round_sums(const float* sums, __half* d, long long count) {
  const long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < count) d[i] = __float2half_rn(sums[i]);
}
