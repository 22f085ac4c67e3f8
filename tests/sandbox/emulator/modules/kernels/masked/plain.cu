// Two outputs: which elements are above a limit, as bytes, and the input with zeros where `drop` is set.
extern "C" __global__ void masked(const float* x, const unsigned char* drop, unsigned char* above, float* kept, int count,
                                  float limit) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  above[at] = x[at] > limit;
  kept[at] = drop[at] ? 0.0f : x[at];
}
