// Sums and maxima of a warp and of a CTA; `parts`: 32 elements of shared memory. NaN is lost by a maximum, and kept by a sum.
#define INF __int_as_float(0x7f800000)
template <class T>
__device__ T warp_total(T value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}
__device__ float warp_most(float value) {
  for (int step = 16; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
  return value;
}
template <class T>
__device__ T total(T value, T* parts) {
  value = warp_total(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) value += parts[warp];
  __syncthreads();
  return value;
}
__device__ float largest(float value, float* parts) {
  value = warp_most(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = fmaxf(value, parts[warp]);
  __syncthreads();
  return value;
}
