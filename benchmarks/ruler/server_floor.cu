// Trivial kernels. As single launches they take what a launch, and one part of a prologue, costs by the timer's ruler.
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;

constexpr unsigned kLines = 64;  // of 128 bytes in D, which is 64x64
constexpr unsigned kBoxBytes = 8 * 64 * 2;
constexpr int kSteps = 512;  // about 24 KiB of instructions, each executed once

// A plan must have an output, so that these take D and leave it alone.
extern "C" __global__ void nothing(uint4*) {}

extern "C" __global__ void waits(uint4*) { wait_for_dependencies(); }

// Each CTA copies a line.
extern "C" __global__ void line(const uint4* a, uint4* d) {
  const unsigned i = blockIdx.x % kLines * 8 + threadIdx.x;
  if (threadIdx.x < 8) d[i] = a[i];
}

// Each CTA copies a box of 8 rows of 64 columns through a tensor map, and stores its first line.
extern "C" __global__ void box(const __grid_constant__ TensorMap a, uint4* d) {
  __shared__ alignas(1024) uint4 rows[kBoxBytes / 16];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned at = smem_address(&barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(at, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(at, kBoxBytes);
    tma_load(smem_address(rows), a, at, 0, blockIdx.x % 8 * 8);
  }
  __syncthreads();
  mbarrier_wait(at, 0);
  if (threadIdx.x < 8) d[blockIdx.x % kLines * 8 + threadIdx.x] = rows[threadIdx.x];
}

extern "C" __global__ void straight(unsigned* d) {
  unsigned x[4] = {threadIdx.x, threadIdx.x + 1, blockIdx.x, blockIdx.x + 3};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    x[i % 4] ^= x[i % 4] >> (i % 13 + 1);
    x[i % 4] += 0x9E3779B9u * (i + 1);
  }
  d[blockIdx.x % kLines * 32 + threadIdx.x % 32] = x[0] ^ x[1] ^ x[2] ^ x[3];
}
