/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "matmul", "grid": ["ceil(M/128)", "ceil(N/128)", 1], "block": [256, 1, 1], "dynamic_smem": 164992, "args": [
   {"tensor_map": {"of": "A", "box": [32, 128], "swizzle": 128, "l2": 128}},
   {"tensor_map": {"of": "B", "box": [32, 32], "swizzle": 128, "l2": 128}},
   {"tensor": "out", "access": "write"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "requires": ["K%4==0", "N%4==0"]
} */
#include <cudal2/elect.cuh>
#include <cudal2/mbarrier.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

using namespace cudal2;
constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 32, kStages = 5, kAhead = kStages - 2;
constexpr unsigned kBytesA = BLOCK_M * 128, kBoxB = BLOCK_K * 128, kStage = kBytesA + BLOCK_N / 32 * kBoxB;

// D(16 x 8) += A(16 x 8) * B(8 x 8) in f64: exact products of f32 values.
__device__ __forceinline__ void multiply(double (&c)[4], double a0, double a1, double a2, double a3, double b0, double b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
}

struct Raw {
  float2 a[8];  // 8 rows of the warp's 64, two of K
  float4 b[2];  // two of K, a column of each of the 4 tiles
};

__device__ __forceinline__ void load(Raw& raw, const unsigned char* a, unsigned xa, const unsigned char* b0, const unsigned char* b1, int kb) {
  const unsigned char* from = a + (xa ^ (kb << 5));
#pragma unroll
  for (int i = 0; i < 8; ++i) raw.a[i] = *reinterpret_cast<const float2*>(from + i * 1024);
  raw.b[0] = *reinterpret_cast<const float4*>(b0 + kb * 1024);
  raw.b[1] = *reinterpret_cast<const float4*>(b1 + kb * 1024);
}

__device__ __forceinline__ void compute(double (&sums)[4][4][4], const Raw& raw) {
  const double b[4][2] = {{raw.b[0].x, raw.b[1].x}, {raw.b[0].y, raw.b[1].y}, {raw.b[0].z, raw.b[1].z}, {raw.b[0].w, raw.b[1].w}};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const double a0 = raw.a[2 * i].x, a1 = raw.a[2 * i + 1].x, a2 = raw.a[2 * i].y, a3 = raw.a[2 * i + 1].y;
#pragma unroll
    for (int j = 0; j < 4; ++j) multiply(sums[i][j], a0, a1, a2, a3, b[j][0], b[j][1]);
  }
}

extern "C" __global__ void __launch_bounds__(256, 1)
matmul(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* out, int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  const unsigned start = smem_address(memory), ring = align_up<1024>(start);
  const unsigned full = ring + kStages * kStage, empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * BLOCK_M, column = blockIdx.y * BLOCK_N, blocks = (k + BLOCK_K - 1) / BLOCK_K;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);
    }
    mbarrier_init_fence();
  }
  __syncthreads();

  // Loads one block into its stage, which has been read before.
  const auto fetch = [&](int block) {
    const int s = block % kStages;
    const unsigned stage = ring + s * kStage, ready = full + 8 * s;
    mbarrier_wait(empty + 8 * s, block / kStages % 2 ^ 1);
    mbarrier_arrive_expect(ready, kStage);
    tma_load(stage, a, ready, block * BLOCK_K, row);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 32; ++j) tma_load(stage + kBytesA + j * kBoxB, b, ready, column + 32 * j, block * BLOCK_K);
  };
  if (warp == 0) {
    if (elect_one()) {
      for (int block = 0; block < kAhead && block < blocks; ++block) fetch(block);
    }
    __syncwarp();
  }

  const int q = lane % 4, g = lane / 4, warp_m = warp % 2, warp_n = warp / 2;
  const int rho = g < 4 ? 2 * g : 2 * g - 7;  // fragment row g is row 0, 2, 4, 6, 1, 3, 5, 7 of 8
  const unsigned char* tiles = memory + (ring - start);
  const unsigned char* a_base = tiles + (warp_m * 64 + rho) * 128 + (q & 1) * 8;
  const unsigned xa = static_cast<unsigned>((q >> 1) ^ rho) << 4;
  const unsigned char* b_base = tiles + kBytesA + warp_n * kBoxB + 2 * q * 128;
  const unsigned xb0 = static_cast<unsigned>(g ^ (2 * q)) << 4, xb1 = 128 + (static_cast<unsigned>(g ^ (2 * q + 1)) << 4);

  double sums[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int t = 0; t < 4; ++t) sums[i][j][t] = 0.0;

  Raw raw[2];
  mbarrier_wait(full, 0);
  load(raw[0], a_base, xa, b_base + xb0, b_base + xb1, 0);
  int s = 0, parity = 0;
  for (int block = 0; block < blocks; ++block) {
    if (warp == 0 && block + kAhead < blocks) {
      if (elect_one()) fetch(block + kAhead);
      __syncwarp();
    }
    const unsigned char* a_stage = a_base + s * kStage;
    const unsigned char* b_stage = b_base + s * kStage;
    const unsigned done = empty + 8 * s;
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
#pragma unroll
    for (int kb = 0; kb < BLOCK_K / 8; ++kb) {
      if (kb + 1 < BLOCK_K / 8) {
        load(raw[(kb + 1) % 2], a_stage, xa, b_stage + xb0, b_stage + xb1, kb + 1);
      } else if (block + 1 < blocks) {
        mbarrier_wait(full + 8 * s, parity);
        load(raw[(kb + 1) % 2], a_base + s * kStage, xa, b_base + s * kStage + xb0, b_base + s * kStage + xb1, 0);
      }
      compute(sums, raw[kb % 2]);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(done);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + warp_m * 64 + i * 16 + h * 8 + rho, c = column + warp_n * 32 + q * 8;
      if (r < m) {
        float* to = out + static_cast<long long>(r) * n + c;
        if (c < n) {
          *reinterpret_cast<float4*>(to) = make_float4(static_cast<float>(sums[i][0][2 * h]), static_cast<float>(sums[i][1][2 * h]),
                                                       static_cast<float>(sums[i][2][2 * h]), static_cast<float>(sums[i][3][2 * h]));
        }
        if (c + 4 < n) {
          *reinterpret_cast<float4*>(to + 4) = make_float4(static_cast<float>(sums[i][0][2 * h + 1]), static_cast<float>(sums[i][1][2 * h + 1]),
                                                           static_cast<float>(sums[i][2][2 * h + 1]), static_cast<float>(sums[i][3][2 * h + 1]));
        }
      }
    }
  }
}
