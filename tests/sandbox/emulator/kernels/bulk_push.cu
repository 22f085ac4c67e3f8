/* cudal2: {"arch": "sm_90a", "requires": ["M%8==0", "N%64==0", "K%16==0", "K<=256"], "launches": [
     {"entry": "bulk_push", "grid": ["N//64", "M//8", 2], "cluster": [1, 1, 2], "block": [128, 1, 1], "programmatic": true, "args": [
       {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}, {"scalar": "N"}, {"scalar": "K"}]}]} */
// D = A B, both row-major. Two CTAs of a cluster take half of K each. Bulk copies bring rows of B; the second CTA pushes its
// sums to the first, which adds them and stores rows of D by bulk copies.
#include <cuda_fp16.h>

#include <cudal2/bulk.cuh>
#include <cudal2/cluster.cuh>
#include <cudal2/convert.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;

extern "C" __global__ void __launch_bounds__(128) bulk_push(const __half* a, const __half* b, __half* d, int n, int k) {
  __shared__ alignas(128) __half rows[128][64];
  __shared__ alignas(16) float4 pushed[128];
  __shared__ alignas(16) __half out[8][64];
  __shared__ alignas(8) unsigned long long barriers[2];
  const unsigned filled = smem_address(&barriers[0]), summed = smem_address(&barriers[1]);
  const int rank = cluster_rank(), half = k / 2, row = blockIdx.y * 8, column = blockIdx.x * 64, first = rank * half;
  const __half* slab = b + static_cast<long long>(first) * n + column;
  if (threadIdx.x / 32 == 0 && elect_one()) {
    mbarrier_init(filled, 1);
    mbarrier_init(summed, 1);
    mbarrier_init_fence();
    if (rank == 0) mbarrier_arrive_expect(summed, sizeof(pushed));
    for (int i = 0; i < half; ++i) bulk_prefetch(slab + static_cast<long long>(i) * n, 128);
  }
  launch_dependents();
  cluster_meet();
  wait_for_dependencies();
  if (threadIdx.x / 32 == 0 && elect_one()) {
    mbarrier_arrive_expect(filled, half * 128);
    bulk_load(smem_address(rows[0]), slab, 128, filled);
    for (int i = 1; i < half; ++i) {
      bulk_load(smem_address(rows[i]), slab + static_cast<long long>(i) * n, 128, filled, l2_policy<1>());
    }
  }
  mbarrier_wait(filled, 0);
  const int r = threadIdx.x / 16, c = threadIdx.x % 16 * 4;
  float4 sum = {};
  for (int i = 0; i < half; ++i) {
    const float x = __half2float(a[static_cast<long long>(row + r) * k + first + i]);
    sum.x += x * __half2float(rows[i][c]), sum.y += x * __half2float(rows[i][c + 1]);
    sum.z += x * __half2float(rows[i][c + 2]), sum.w += x * __half2float(rows[i][c + 3]);
  }
  if (rank == 1) {
    store_remote_async(map_to_rank(smem_address(&pushed[threadIdx.x]), 0), sum, map_to_rank(summed, 0));
    return;
  }
  mbarrier_wait(summed, 0);
  const float4 other = pushed[threadIdx.x];
  *reinterpret_cast<uint2*>(&out[r][c]) = {pack<__half>(sum.x + other.x, sum.y + other.y), pack<__half>(sum.z + other.z, sum.w + other.w)};
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x / 32 == 0 && elect_one()) {
    bulk_store(d + static_cast<long long>(row) * n + column, smem_address(out[0]), 128);
    for (int i = 1; i < 8; ++i) bulk_store(d + static_cast<long long>(row + i) * n + column, smem_address(out[i]), 128, l2_policy<2>());
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}
