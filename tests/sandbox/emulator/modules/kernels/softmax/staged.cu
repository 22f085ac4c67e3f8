// A row per CTA, brought to shared memory by cp.async, 16 bytes each. Columns: a multiple of 4, to 1024.
extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  __shared__ __align__(16) float row[1024];
  __shared__ float parts[32];
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  for (int i = 4 * threadIdx.x; i < columns; i += 4 * blockDim.x) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(row + i);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + i) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  float most = -INF, sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
  most = largest(most, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] = expf(row[i] - most);
  sum = total(sum, parts);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = row[i] / sum;
}
