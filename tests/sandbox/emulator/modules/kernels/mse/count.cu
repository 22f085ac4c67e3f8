// How many elements are positive: ballots of warps, added to a 64-bit integer in any order.
extern "C" __global__ void cleared(unsigned long long* out) { *out = 0; }

extern "C" __global__ void counted(const float* x, unsigned long long* out, int count) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 32, lane = threadIdx.x % 32;
  unsigned found = 0;
  for (int from = first; from < count; from += gridDim.x * blockDim.x) {
    const bool positive = from + lane < count && x[from + lane] > 0;
    found += __popc(__ballot_sync(0xffffffff, positive));
  }
  if (lane == 0 && found) atomicAdd(out, (unsigned long long)found);
}
