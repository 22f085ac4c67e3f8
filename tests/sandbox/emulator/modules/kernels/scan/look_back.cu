// One launch: each CTA takes the next piece of 64 of the one row, publishes its sum, and adds those before it as they appear.
// Flags in the workspace: a ticket, then for each piece a state (0 none, 1 sum) beside its sum. The last CTA clears them.
extern "C" __global__ void row_scan(const float* x, float* out, unsigned* ticket, unsigned long long* states, int columns,
                                    int pieces) {
  __shared__ float parts[32];
  __shared__ int mine;
  __shared__ float earlier;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
  __syncthreads();
  const int piece = mine, at = piece * 64 + threadIdx.x, lane = threadIdx.x % 32;
  float value = at < columns ? x[at] : 0;
  const float sum = total(value, parts);
  if (threadIdx.x == 0) {
    atomicExch(states + piece, 1ull << 32 | __float_as_uint(sum));
    float before = 0;
    for (int i = 0; i < piece; ++i) {
      unsigned long long found = 0;
      while (!(found >> 32)) found = atomicAdd(states + i, 0ull);
      before += __uint_as_float((unsigned)found);
    }
    earlier = before;
  }
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(0xffffffff, value, step);
    if (lane >= step) value += before;
  }
  if (threadIdx.x == 31) parts[0] = value;
  __syncthreads();
  if (threadIdx.x >= 32) value += parts[0];
  if (at < columns) out[at] = earlier + value;
  if (threadIdx.x) return;
  __threadfence();
  if (atomicAdd(ticket + 1, 1) == pieces - 1) {
    __threadfence();
    ticket[0] = ticket[1] = 0;
    for (int i = 0; i < pieces; ++i) states[i] = 0;
  }
}
