// Two CTAs of a cluster share a row: each reads the other's maximum and sum from its shared memory.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  __shared__ float parts[32], own[2];
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = cluster.block_rank(), half = (columns + 1) / 2, from = rank * half, to = min(from + half, columns);
  float* other = cluster.map_shared_rank(own, 1 - rank);
  x += blockIdx.y * columns;
  out += blockIdx.y * columns;
  float most = -INF, sum = 0;
  for (int i = from + threadIdx.x; i < to; i += blockDim.x) most = fmaxf(most, x[i]);
  most = largest(most, parts);
  if (threadIdx.x == 0) own[0] = most;
  cluster.sync();
  most = fmaxf(most, other[0]);
  for (int i = from + threadIdx.x; i < to; i += blockDim.x) sum += expf(x[i] - most);
  sum = total(sum, parts);
  if (threadIdx.x == 0) own[1] = sum;
  cluster.sync();
  sum += other[1];
  cluster.sync();
  for (int i = from + threadIdx.x; i < to; i += blockDim.x) out[i] = expf(x[i] - most) / sum;
}
