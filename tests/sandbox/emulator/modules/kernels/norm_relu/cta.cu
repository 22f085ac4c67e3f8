// What follows a product: bias, LayerNorm and ReLU; a row per CTA, kept in shared memory. Columns: to 512.
extern "C" __global__ void norm_relu(const float* product, const float* bias, const float* weight, const float* shift,
                                     float* out, int columns, float eps) {
  __shared__ float parts[32], row[512];
  product += blockIdx.x * columns;
  out += blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] = product[i] + bias[i];
  const float mean = total(sum, parts) / columns;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  const float scale = rsqrtf(total(squares, parts) / columns + eps);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float made = fmaf((row[i] - mean) * scale, weight[i], shift[i]);
    out[i] = made < 0 ? 0 : made;
  }
}
