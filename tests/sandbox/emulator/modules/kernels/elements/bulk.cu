// Pieces of 256 elements through shared memory: one bulk copy each way, the arrival of its bytes at an mbarrier.
// Count: a multiple of 256.
__device__ unsigned shared_address(const void* of) { return (unsigned)__cvta_generic_to_shared(of); }

extern "C" __global__ void gelu_relu(const float* x, float* out, int count) {
  __shared__ __align__(128) float piece[256];
  __shared__ __align__(8) unsigned long long arrived;
  const unsigned barrier = shared_address(&arrived), tile = shared_address(piece);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int phase = 0;
  for (int from = blockIdx.x * 256; from < count; from += gridDim.x * 256, phase ^= 1) {
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(barrier) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(tile),
                   "l"(x + from), "r"(barrier)
                   : "memory");
    }
    unsigned done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(barrier), "r"(phase)
                   : "memory");
    }
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
      const float positive = piece[i] < 0 ? 0 : piece[i];
      piece[i] = 0.5f * positive * (1 + erff(positive * 0.70710678f));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + from), "r"(tile) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
