// A warp for each output; float4 along the depth, a multiple of 4.
extern "C" __global__ void linear(const float4* x, const float4* weight, const float* bias, float* out, int rows, int columns,
                                  int quarters) {
  const int at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (at >= rows * columns) return;
  x += at / columns * quarters;
  weight += at % columns * quarters;
  float sum = 0;
  for (int k = threadIdx.x % 32; k < quarters; k += 32) {
    sum += x[k].x * weight[k].x + x[k].y * weight[k].y + x[k].z * weight[k].z + x[k].w * weight[k].w;
  }
  sum = warp_total(sum) + bias[at % columns];
  if (threadIdx.x % 32 == 0) out[at] = sum < 0 ? 0 : sum;
}
