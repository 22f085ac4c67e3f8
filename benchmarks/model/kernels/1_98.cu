/* cudal2: {
 "arch": "sm_90a",
 "launches": [
  {"entry": "partial", "grid": ["SMS", 1, 1], "block": [544, 1, 1], "dynamic_smem": 196864, "programmatic": true, "args": [
   {"tensor": "predictions"}, {"tensor": "targets"}, {"workspace": 0}, {"scalar": "batch_size*input_shape_0", "type": "i64"}]},
  {"entry": "finish", "grid": [1, 1, 1], "block": [32, 1, 1], "programmatic": true, "args": [
   {"workspace": 0}, {"tensor": "out", "access": "write"}, {"scalar": "SMS"}, {"scalar": "batch_size"}]}],
 "workspace": {"bytes": "16*SMS"},
 "requires": ["input_shape_0%4==0"]
} */
#include <cudal2/bulk.cuh>
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/shared.cuh>
#include <cstdint>

using namespace cudal2;
constexpr int kWarps = 16, kThreads = kWarps * 32, kChunk = 4096, kStages = 6;
constexpr unsigned kHalf = kChunk * 4, kStage = 2 * kHalf;

// Any of the top three bits of the result is set unless 2^-32 <= x < 2^32.
__device__ __forceinline__ unsigned outside(float x) { return __float_as_uint(x) - 0x2f800000u; }

// t * log(t / p), both within the range of `outside`.
__device__ __forceinline__ float fast_term(float t, float p) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(p));
  float q = t * inverse;
  q = fmaf(fmaf(-p, q, t), inverse, q);
  const int bits = __float_as_int(q);
  const int e = (bits - 0x3f2aaaab) & static_cast<int>(0xff800000u);
  const float m = __int_as_float(bits - e) - 1.0f;  // mantissa in [2/3, 4/3), less 1
  const float s = m * m;
  float r = -0.130310059f, u = 0.140869141f;
  r = fmaf(r, s, -0.121483512f);
  u = fmaf(u, s, 0.139814854f);
  r = fmaf(r, s, -0.166846126f);
  u = fmaf(u, s, 0.200120345f);
  r = fmaf(r, s, -0.249996200f);
  r = fmaf(u, m, r);
  r = fmaf(r, m, 0.333331972f);
  r = fmaf(r, m, -0.5f);
  r = fmaf(r, s, m);
  r = fmaf(static_cast<float>(e), 0.693147182f * 1.1920928955078125e-7f, r);
  return t * r;
}

// As the module says it, without contraction.
__device__ __forceinline__ float slow_term(float t, float p) {
  const float own = t == 0.0f ? 0.0f : __fmul_rn(t, logf(t));  // NaN stays NaN
  return __fsub_rn(own, __fmul_rn(t, logf(p)));
}

__device__ __forceinline__ unsigned outside4(const float4& t, const float4& p) {
  return outside(t.x) | outside(t.y) | outside(t.z) | outside(t.w) | outside(p.x) | outside(p.y) | outside(p.z) | outside(p.w);
}

__device__ __forceinline__ float slow4(const float4& t, const float4& p) {
  return (slow_term(t.x, p.x) + slow_term(t.y, p.y)) + (slow_term(t.z, p.z) + slow_term(t.w, p.w));
}

__device__ __forceinline__ float fast4(const float4& t, const float4& p) {
  return (fast_term(t.x, p.x) + fast_term(t.y, p.y)) + (fast_term(t.z, p.z) + fast_term(t.w, p.w));
}

extern "C" __global__ void __launch_bounds__(kThreads + 32, 1)
partial(const float* __restrict__ predictions, const float* __restrict__ targets, double* sums, long long count) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ double warp_sums[kWarps];
  const unsigned base = smem_address(memory), ring = (base + 127) / 128 * 128;
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = static_cast<int>((count + kChunk - 1) / kChunk);

  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, kWarps);
    }
    mbarrier_init_fence();
  }
  launch_dependents();
  __syncthreads();

  if (warp == kWarps) {
    if (elect_one()) {
      int chunk = blockIdx.x;
      for (int s = 0; s < kStages && chunk < chunks; ++s, chunk += gridDim.x) {
        const long long at = static_cast<long long>(chunk) * kChunk;
        const unsigned bytes = static_cast<unsigned>(min(static_cast<long long>(kChunk), count - at)) * 4;
        bulk_prefetch(predictions + at, bytes);
        bulk_prefetch(targets + at, bytes);
      }
      wait_for_dependencies();
      int stage = 0;
      unsigned phase = 1;  // a fresh barrier lets this pass
      for (chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const long long at = static_cast<long long>(chunk) * kChunk;
        const unsigned bytes = static_cast<unsigned>(min(static_cast<long long>(kChunk), count - at)) * 4;
        const unsigned to = ring + stage * kStage, ready = full + 8 * stage;
        mbarrier_wait(empty + 8 * stage, phase);
        mbarrier_arrive_expect(ready, 2 * bytes);
        bulk_load(to, predictions + at, bytes, ready);
        bulk_load(to + kHalf, targets + at, bytes, ready);
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    wait_for_dependencies();
    float sum0 = 0, sum1 = 0;
    int stage = 0;
    unsigned phase = 0;
    for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
      const float4* p = reinterpret_cast<const float4*>(memory + (ring - base) + stage * kStage) + threadIdx.x;
      const float4* t = p + kHalf / 16;
      const long long left = count - static_cast<long long>(chunk) * kChunk;
      mbarrier_wait(full + 8 * stage, phase);
      if (left >= kChunk) {
        const float4 p0 = p[0], t0 = t[0], p1 = p[kThreads], t1 = t[kThreads];
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
        if (((outside4(t0, p0) | outside4(t1, p1)) & 0xe0000000u) == 0) {
          sum0 += fast4(t0, p0);
          sum1 += fast4(t1, p1);
        } else {
          sum0 += slow4(t0, p0);
          sum1 += slow4(t1, p1);
        }
      } else {  // the last chunk
        const int quads = static_cast<int>(left) / 4;
        for (int i = 0; i < 2; ++i) {
          if (static_cast<int>(threadIdx.x) + i * kThreads < quads) {
            const float4 p0 = p[i * kThreads], t0 = t[i * kThreads];
            sum0 += (outside4(t0, p0) & 0xe0000000u) == 0 ? fast4(t0, p0) : slow4(t0, p0);
          }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
      }
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    double sum = static_cast<double>(sum0) + static_cast<double>(sum1);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) warp_sums[warp] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int i = 0; i < kWarps; ++i) sum += warp_sums[i];
    sums[blockIdx.x] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(32) finish(const double* sums, float* out, int ctas, int rows) {
  launch_dependents();
  wait_for_dependencies();
  double sum = 0;
  for (int i = threadIdx.x; i < ctas; i += 32) sum += sums[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) out[0] = static_cast<float>(sum / rows);
}
