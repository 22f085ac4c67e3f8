// f64 through mma.sync m8n8k4: a warp for 8 x 8 outputs.
extern "C" __global__ void linear(const double* x, const double* weight, const double* bias, double* out, int rows, int columns,
                                  int depth) {
  const int lane = threadIdx.x, row = 8 * blockIdx.y + lane / 4, column = 8 * blockIdx.x + lane / 4;
  double c[2] = {};
  for (int from = 0; from < depth; from += 4) {
    const int k = from + lane % 4;
    const double a = row < rows && k < depth ? x[row * depth + k] : 0;
    const double b = column < columns && k < depth ? weight[column * depth + k] : 0;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a), "d"(b));
  }
  for (int i = 0; i < 2; ++i) {
    const int to = 8 * blockIdx.x + 2 * (lane % 4) + i;
    if (row < rows && to < columns) out[row * columns + to] = c[i] + bias[to] < 0 ? 0 : c[i] + bias[to];
  }
}
