/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "softmax", "grid": ["ceil(rows/8)", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "rows"}, {"scalar": "columns"}]}]
} */
// Module: out = softmax(x) over columns. Dims: rows, columns.
// A maximum so far, and the sum of exp(x - maximum) over what it was taken of.
struct Online {
  float most = __int_as_float(0xff800000), sum = 0;  // -inf
  __device__ void add(float other_most, float other_sum) {
    const float higher = fmaxf(most, other_most);
    // exp(-inf - -inf) would be NaN: what is empty, or -inf so far, counts as 0.
    sum = (most == higher ? sum : sum * expf(most - higher)) + (other_most == higher ? other_sum : other_sum * expf(other_most - higher));
    most = higher;
  }
};

// A warp for each row; x is read twice: once for maximum and sum together, once to write.
extern "C" __global__ void __launch_bounds__(256) softmax(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<long long>(row) * columns;
  out += static_cast<long long>(row) * columns;
  Online state;
  for (int i = lane; i < columns; i += 32) state.add(x[i], 1);
  for (int step = 16; step; step /= 2) {
    const float most = __shfl_xor_sync(0xffffffffu, state.most, step), sum = __shfl_xor_sync(0xffffffffu, state.sum, step);
    state.add(most, sum);
  }
  for (int i = lane; i < columns; i += 32) out[i] = expf(x[i] - state.most) / state.sum;
}
