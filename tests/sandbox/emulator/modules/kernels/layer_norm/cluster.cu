// Two CTAs of a cluster share a row, which each keeps in shared memory. Columns: to 1024.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ float both(cg::cluster_group& cluster, float value, float* parts, float* own) {
  value = total(value, parts);
  if (threadIdx.x == 0) *own = value;
  cluster.sync();
  // In the same order in both.
  return *cluster.map_shared_rank(own, 0) + *cluster.map_shared_rank(own, 1);
}

extern "C" __global__ void layer_norm(const float* x, const float* weight, const float* bias, float* out, int columns,
                                      float eps) {
  __shared__ float parts[32], own[2], row[512];
  cg::cluster_group cluster = cg::this_cluster();
  const int half = (columns + 1) / 2, from = cluster.block_rank() * half, count = min(half, columns - from);
  x += blockIdx.y * columns + from;
  out += blockIdx.y * columns + from;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += row[i] = x[i];
  const float mean = both(cluster, sum, parts, own) / columns;
  for (int i = threadIdx.x; i < count; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  const float scale = rsqrtf(both(cluster, squares, parts, own + 1) / columns + eps);
  cluster.sync();
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = (row[i] - mean) * scale * weight[from + i] + bias[from + i];
}
