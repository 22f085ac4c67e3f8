/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "conv_softmax_pool",
   "grid": ["ceil(batch_size*((depth-2)//4)*((height-2)//4)*((width-2)//4)/144)", 1, 1], "block": [256, 1, 1],
   "dynamic_smem": "in_channels*1728", "programmatic": true,
   "args": [
   {"tensor": "x"}, {"tensor": "conv_weight"}, {"tensor": "conv_bias"}, {"tensor": "out", "access": "write"},
   {"scalar": "batch_size"}, {"scalar": "in_channels"}, {"scalar": "depth"}, {"scalar": "height"}, {"scalar": "width"},
   {"scalar": "(depth-2)//4"}, {"scalar": "(height-2)//4"}, {"scalar": "(width-2)//4"}]}],
 "requires": ["out_channels==16", "kernel_size==3", "pool_kernel_size==2", "width%2==0", "height*width%4==0",
   "depth>=6", "height>=6", "width>=6"]
} */
#include <cstdint>
#include <cudal2/bulk.cuh>
#include <cudal2/programmatic.cuh>

__device__ __forceinline__ float max_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

__device__ __forceinline__ float exp2_fast(float a) {
  float c;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(a));
  return c;
}

__device__ __forceinline__ float reciprocal(float a) {   // of 1 to 16, or NaN
  float c;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(a));
  return c;
}

// Half of the values go to the lane `mask` away, which keeps the other half.
template <int kCount>
__device__ __forceinline__ void halve(float (&v)[16], bool upper, int mask) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float send = upper ? v[i] : v[i + kCount / 2];
    const float keep = upper ? v[i + kCount / 2] : v[i];
    v[i] = max_nan(keep, __shfl_xor_sync(0xFFFFFFFFu, send, mask));
  }
}

__device__ __forceinline__ void load_row(float (&v)[4], const float* from) {
  const float2 left = __ldg(reinterpret_cast<const float2*>(from));
  const float2 right = __ldg(reinterpret_cast<const float2*>(from + 2));
  v[0] = left.x;
  v[1] = left.y;
  v[2] = right.x;
  v[3] = right.y;
}

extern "C" __global__ void __launch_bounds__(256, 1)
conv_softmax_pool(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                  float* __restrict__ out, int batch, int channels, int depth, int height, int width, int down_d,
                  int down_h, int down_w) {
  extern __shared__ float4 weights[];   // [channel, kd, kh, kw][16]
  __shared__ float biases[16];
  const int plane = height * width;
  const int volume = down_d * down_h * down_w;
  const int area = down_h * down_w;
  const int cells = batch * volume;
  const int first_cell = blockIdx.x * 144;

  cudal2::launch_dependents();
  if (threadIdx.x == 0) {
    const int last_cell = min(first_cell + 143, cells - 1);
    for (int unit = first_cell / area; unit <= last_cell / area; ++unit) {   // a batch element and 4 planes of output
      const int b = unit / down_d, z = unit % down_d;
      for (int c = 0; c < channels; ++c)
        cudal2::bulk_prefetch(x + (static_cast<long long>(b * channels + c) * depth + 4 * z) * plane,
                              static_cast<unsigned>(6 * plane * 4));
    }
  }
  cudal2::wait_for_dependencies();

  const int taps = channels * 27;
  {
    float* const target = reinterpret_cast<float*>(weights);
    for (int i = threadIdx.x; i < taps * 16; i += 256) target[i] = weight[(i % 16) * taps + i / 16];
    if (threadIdx.x < 16) biases[threadIdx.x] = bias[threadIdx.x];
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool side_w = lane & 1, side_h = lane & 8, side_d = lane & 16;
  const int bodies = channels * 3;

#pragma unroll 1
  for (int turn = warp; turn < 36; turn += 8) {
    const int task = first_cell + turn * 4;
    if (task >= cells) break;
    const int wanted = task + ((lane >> 1) & 3);
    const int cell = min(wanted, cells - 1);
    const int b = cell / volume;
    const int inside = cell - b * volume;
    const int z = inside / area;
    const int y = (inside - z * area) / down_w;
    const int w = inside - z * area - y * down_w;
    const float* at = x + (static_cast<long long>(b * channels) * depth + 4 * z + (side_d ? 2 : 0)) * plane +
                      (4 * y + (side_h ? 2 : 0)) * width + 4 * w + (side_w ? 2 : 0);

    float v[2][4][4];   // two planes, four rows, four columns
#pragma unroll
    for (int d = 0; d < 2; ++d) {
#pragma unroll
      for (int r = 0; r < 4; ++r) load_row(v[d][r], at + d * plane + r * width);
    }

    float sums[8][16];
#pragma unroll
    for (int c = 0; c < 16; ++c) {
      const float start = biases[c];
#pragma unroll
      for (int p = 0; p < 8; ++p) sums[p][c] = start;
    }

    const float4* taps_at = weights;
    int kd = 0;
#pragma unroll 1
    for (int body = 0; body < bodies; ++body) {
      // Where the next body finds its rows; the last one loads its own once more.
      int forward = plane;
      if (++kd == 3) {
        kd = 0;
        forward = (depth - 2) * plane;
      }
      if (body + 1 == bodies) forward = 0;
      at += forward;
#pragma unroll
      for (int kh = 0; kh < 3; ++kh) {
#pragma unroll
        for (int kw = 0; kw < 3; ++kw) {
#pragma unroll
          for (int quad = 0; quad < 4; ++quad) {
            const float4 f = taps_at[(kh * 3 + kw) * 4 + quad];
#pragma unroll
            for (int p = 0; p < 8; ++p) {
              const float value = v[p >> 2][((p >> 1) & 1) + kh][(p & 1) + kw];
              sums[p][4 * quad + 0] = fmaf(value, f.x, sums[p][4 * quad + 0]);
              sums[p][4 * quad + 1] = fmaf(value, f.y, sums[p][4 * quad + 1]);
              sums[p][4 * quad + 2] = fmaf(value, f.z, sums[p][4 * quad + 2]);
              sums[p][4 * quad + 3] = fmaf(value, f.w, sums[p][4 * quad + 3]);
            }
          }
        }
        // Row kh is not read again in this body, after the last kh row 3 neither.
        load_row(v[0][kh], at + kh * width);
        load_row(v[1][kh], at + plane + kh * width);
        if (kh == 2) {
          load_row(v[0][3], at + 3 * width);
          load_row(v[1][3], at + plane + 3 * width);
        }
      }
      taps_at += 36;
    }

    float best[16];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      float most = sums[p][0];
#pragma unroll
      for (int c = 1; c < 16; ++c) most = fmaxf(most, sums[p][c]);
      const float scale = 1.4426950408889634f;
      const float shift = -(most * scale);
      float total = 0.0f;
#pragma unroll
      for (int c = 0; c < 16; ++c) {
        sums[p][c] = exp2_fast(fmaf(sums[p][c], scale, shift));
        total += sums[p][c];
      }
      const float inverse = reciprocal(total);
#pragma unroll
      for (int c = 0; c < 16; ++c) {
        const float value = sums[p][c] * inverse;
        best[c] = p == 0 ? value : max_nan(best[c], value);
      }
    }

    halve<16>(best, side_w, 1);
    halve<8>(best, side_h, 8);
    halve<4>(best, side_d, 16);
    if (wanted < cells) {
      const int channel = (side_w ? 8 : 0) + (side_h ? 4 : 0) + (side_d ? 2 : 0);
      float* const target = out + static_cast<long long>(b * 16 + channel) * volume + inside;
      target[0] = best[0];
      target[volume] = best[1];
    }
  }
}
