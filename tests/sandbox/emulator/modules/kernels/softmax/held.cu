// A row per CTA of 128, kept in registers as up to two float4 of each thread; read once. Columns: a multiple of 4, to 1024.
__device__ float& part(float4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }

extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  __shared__ float parts[32];
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  float4 held[2];
  float most = -INF, sum = 0;
  for (int j = 0; j < 2; ++j) {
    const int at = 4 * (threadIdx.x + 128 * j);
    held[j] = at < columns ? *reinterpret_cast<const float4*>(x + at) : make_float4(-INF, -INF, -INF, -INF);
    for (int i = 0; i < 4; ++i) most = fmaxf(most, part(held[j], i));
  }
  most = largest(most, parts);
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 4; ++i) sum += part(held[j], i) = expf(part(held[j], i) - most);
  }
  const float scale = 1 / total(sum, parts);
  for (int j = 0; j < 2; ++j) {
    const int at = 4 * (threadIdx.x + 128 * j);
    for (int i = 0; i < 4; ++i) part(held[j], i) *= scale;
    if (at < columns) *reinterpret_cast<float4*>(out + at) = held[j];
  }
}
