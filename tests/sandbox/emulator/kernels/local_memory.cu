// cudal2: {"arch": "sm_80", "launches": [{"entry": "local_memory", "grid": ["ceil(M*ceil(N/8)/64)", 1, 1], "block": [64, 1, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"},
//   {"scalar": "K"}, {"scalar": "ceil(N/8)"}]}]}
// D = A B, B column-major: a thread computes up to 8 neighbours of a row. Written for what it compiles to: a call that
// stays a call, sums in local memory because their index is not known, a switch, divisions by what is not known.
#include <cuda_fp16.h>

constexpr int kOutputs = 8;

__device__ __noinline__ float dot(const __half* row, const __half* column, int k) {
  float sum = 0.0f;
  int i = 0;
  for (; i + 8 <= k; i += 8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += __half2float(row[i + j]) * __half2float(column[i + j]);
  }
  const auto next = [&] {
    sum += __half2float(row[i]) * __half2float(column[i]);
    ++i;
  };
  switch (k - i) {  // the rest, one entry a length
    case 7: next(); [[fallthrough]];
    case 6: next(); [[fallthrough]];
    case 5: next(); [[fallthrough]];
    case 4: next(); [[fallthrough]];
    case 3: next(); [[fallthrough]];
    case 2: next(); [[fallthrough]];
    case 1: next(); [[fallthrough]];
    default: break;
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(64)
    local_memory(const __half* a, const __half* b, __half* d, int m, int n, int k, int groups) {
  const int thread = blockIdx.x * 64 + threadIdx.x;
  const int row = thread / groups, first = thread % groups * kOutputs;
  if (row >= m) return;
  const int count = min(kOutputs, n - first);
  float sums[kOutputs];
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int turned = (i + row) % count;  // rows start at different columns, so the index is the thread's own
    sums[turned] = dot(a + row * k, b + (first + turned) * k, k);
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) d[row * n + first + i] = __float2half_rn(sums[i]);
}
