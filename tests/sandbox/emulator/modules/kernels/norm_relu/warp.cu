// What follows a product: bias, LayerNorm and ReLU; a row per warp.
extern "C" __global__ void norm_relu(const float* product, const float* bias, const float* weight, const float* shift,
                                     float* out, int rows, int columns, float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  product += row * columns;
  out += row * columns;
  float sum = 0;
  for (int i = lane; i < columns; i += 32) sum += product[i] + bias[i];
  const float mean = warp_total(sum) / columns;
  float squares = 0;
  for (int i = lane; i < columns; i += 32) {
    const float away = product[i] + bias[i] - mean;
    squares += away * away;
  }
  const float scale = 1.0f / sqrtf(warp_total(squares) / columns + eps);
  for (int i = lane; i < columns; i += 32) {
    const float value = (product[i] + bias[i] - mean) * scale * weight[i] + shift[i];
    out[i] = value < 0 ? 0 : value;
  }
}
