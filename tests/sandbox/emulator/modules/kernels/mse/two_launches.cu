// Partial sums of each CTA by float4, then one CTA adds them. Count: a multiple of 4.
extern "C" __global__ void partials(const float4* x, const float4* target, float* partial, int quarters) {
  __shared__ float parts[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quarters; i += gridDim.x * blockDim.x) {
    const float4 a = x[i], b = target[i];
    const float4 d = {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
    sum += fmaf(d.x, d.x, d.y * d.y) + fmaf(d.z, d.z, d.w * d.w);
  }
  sum = total(sum, parts);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void mean(const float* partial, float* out, int partials, int count) {
  float sum = 0;
  for (int i = threadIdx.x; i < partials; i += 32) sum += partial[i];
  sum = warp_total(sum);
  if (threadIdx.x == 0) *out = sum / count;
}
