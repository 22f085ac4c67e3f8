/* cudal2: {
 "arch": "sm_90a",
 "launches": [{"entry": "conv_softmax_pool",
   "grid": ["SMS", 1, 1], "block": [384, 1, 1],
   "dynamic_smem": 186496, "programmatic": true,
   "args": [
   {"tensor_map": {"of": "x", "dims": ["width", "height", "batch_size*in_channels*depth"],
     "strides": ["width", "height*width"], "box": [12, 6, 6], "swizzle": 0, "l2": 128}},
   {"tensor": "conv_weight"}, {"tensor": "conv_bias"}, {"tensor": "out", "access": "write"},
   {"scalar": "batch_size"}, {"scalar": "depth"},
   {"scalar": "(depth-2)//4"}, {"scalar": "(height-2)//4"}, {"scalar": "(width-2)//4"}]}],
 "requires": ["out_channels==16", "in_channels==3", "kernel_size==3", "pool_kernel_size==2", "width%4==0",
   "depth>=6", "height>=6", "width>=12"]
} */
#include <cstdint>
#include <cudal2/mbarrier.cuh>
#include <cudal2/programmatic.cuh>
#include <cudal2/registers.cuh>
#include <cudal2/shared.cuh>
#include <cudal2/tma.cuh>

constexpr int kPoint = 216;                 // doubles of one Winograd point: [c 3][d 6][h 6][tile 2]
constexpr int kCell = 4 * kPoint;
constexpr int kRawChannel = 1792;           // bytes: 36 rows of 48, to a multiple of 128
constexpr int kRaw = 3 * kRawChannel;
constexpr int kOut = 2048;                  // bytes: 32 positions of 16 channels
constexpr int kRawAt = 8 * 2 * kCell * 8;   // 110592
constexpr int kOutAt = kRawAt + 8 * kRaw;   // 153600

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

// Not ld.global.nc, which may move above the wait for the preceding kernel.
__device__ __forceinline__ float load_ordered(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
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

__device__ __forceinline__ void mma_k16(double (&d)[4], double a0, double a1, double a2, double a3, double a4,
                                        double a5, double a6, double a7, double b0, double b1, double b2, double b3) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(a4), "d"(a5), "d"(a6), "d"(a7), "d"(b0), "d"(b1), "d"(b2), "d"(b3));
}

__device__ __forceinline__ void mma_k8(double (&d)[4], double a0, double a1, double a2, double a3, double b0,
                                       double b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
}

__device__ __forceinline__ void mma_k4(double (&d)[4], double a0, double a1, double b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a0), "d"(a1), "d"(b0));
}

// One Winograd point: 16 positions, 28 taps, 16 channels.
__device__ __forceinline__ void multiply(double (&sum)[2][4], const double* p0, const double* p1, const double* p2,
                                         const double (&f)[2][6], const double* tail) {
  double r0[4], r1[4], r2[2];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    r0[j] = p0[12 * j];
    r1[j] = p1[12 * j];
  }
  r2[0] = p2[0];
  r2[1] = p2[12];
  const double t0 = tail[0], t1 = tail[32];
#pragma unroll
  for (int n = 0; n < 2; ++n)
    mma_k16(sum[n], r0[0], r0[1], r1[0], r1[1], r0[1], r0[2], r1[1], r1[2], f[n][0], f[n][1], f[n][2], f[n][3]);
#pragma unroll
  for (int n = 0; n < 2; ++n) mma_k8(sum[n], r0[2], r0[3], r1[2], r1[3], f[n][4], f[n][5]);
  mma_k4(sum[0], r2[0], r2[1], t0);
  mma_k4(sum[1], r2[0], r2[1], t1);
}

extern "C" __global__ void __launch_bounds__(384, 1)
conv_softmax_pool(const __grid_constant__ cudal2::TensorMap x_map, const float* weight, const float* bias, float* out,
                  int batch, int depth, int down_d, int down_h, int down_w) {
  extern __shared__ unsigned char dynamic[];
  // Of a scheduler's three warps: raw full 2, V full 4, V empty 4, out full 4, out empty 4.
  __shared__ unsigned long long barriers[72];
  __shared__ double2 biases[8];
  __shared__ double tails[4 * 2 * 32];   // weights of the last step of K: [point][half of the channels][lane]

  const unsigned start = cudal2::smem_address(dynamic);
  unsigned char* const shared = dynamic + ((128u - (start & 127u)) & 127u);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const int team = warp & 3;
  const int g = lane >> 2, tig = lane & 3;

  cudal2::launch_dependents();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < 72; ++i) cudal2::mbarrier_init(cudal2::smem_address(&barriers[i]), 1);
    cudal2::mbarrier_init_fence();
  }
  if (threadIdx.x == 256) cudal2::tma_prefetch_map(x_map);
  cudal2::wait_for_dependencies();
  if (threadIdx.x >= 256 && threadIdx.x < 264) {
    const int i = threadIdx.x - 256;
    biases[i] = make_double2(static_cast<double>(load_ordered(bias + 2 * i)),
                             static_cast<double>(load_ordered(bias + 2 * i + 1)));
  }
  if (warp < 2) {   // input channel 2, kh 2, kd by the thread in its quad; the fourth is padding
    const float* const at = weight + (8 * warp + g) * 81 + 54 + (tig < 3 ? tig : 0) * 9 + 6;
    const float w0 = load_ordered(at), w1 = load_ordered(at + 1), w2 = load_ordered(at + 2);
    const double g0 = tig < 3 ? static_cast<double>(w0) : 0.0;
    const double g1 = tig < 3 ? static_cast<double>(w1) : 0.0;
    const double g2 = tig < 3 ? static_cast<double>(w2) : 0.0;
    tails[warp * 32 + lane] = g0;
    tails[64 + warp * 32 + lane] = 0.5 * ((g0 + g2) + g1);
    tails[128 + warp * 32 + lane] = 0.5 * ((g0 + g2) - g1);
    tails[192 + warp * 32 + lane] = g2;
  }
  __syncthreads();

  const int volume = down_d * down_h * down_w;
  const int cells = batch * volume;
  const int teams = gridDim.x * 4;
  const int index = blockIdx.x * 4 + team;
  const int first = static_cast<int>(static_cast<long long>(cells) * index / teams);
  const int count = static_cast<int>(static_cast<long long>(cells) * (index + 1) / teams) - first;

  const unsigned raw_full = cudal2::smem_address(&barriers[18 * team]);
  const unsigned v_full = raw_full + 16;
  const unsigned v_empty = raw_full + 48;
  const unsigned out_full = raw_full + 80;
  const unsigned out_empty = raw_full + 112;
  double* const v = reinterpret_cast<double*>(shared) + team * 4 * kCell;
  unsigned char* const outs = shared + kOutAt + team * 4 * kOut;

  if (warp >= 8) {   // transform, softmax, pooling
    cudal2::registers_decrease<88>();
    const unsigned char* const raw = shared + kRawAt + team * 2 * kRaw;
    const unsigned raw_address = cudal2::smem_address(raw);

    int b = first / volume;            // of the next load
    int inside = first - b * volume;
    int z = inside / (down_h * down_w);
    int y = (inside - z * down_h * down_w) / down_w;
    int w = inside - (z * down_h + y) * down_w;
    float* target = out + static_cast<long long>(b) * 16 * volume;   // of the next output

    int from_row[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int r = min(lane + 32 * part, 107);
      from_row[part] = (r / 36) * (kRawChannel - 36 * 48) + r * 48;
    }

    auto fetch = [&](int slot) {
      if (lane == 0) {
        const unsigned bar = raw_full + 8 * slot;
        cudal2::mbarrier_arrive_expect(bar, 3 * 36 * 48);
#pragma unroll 1
        for (int c = 0; c < 3; ++c)
          cudal2::tma_load_3d(raw_address + slot * kRaw + c * kRawChannel, x_map, bar, 4 * w, 4 * y,
                              (b * 3 + c) * depth + 4 * z);
      }
      __syncwarp();
      if (++w == down_w) {
        w = 0;
        if (++y == down_h) {
          y = 0;
          if (++z == down_d) {
            z = 0;
            ++b;
          }
        }
      }
    };
    auto transform = [&](int j) {      // of the j-th cell
      cudal2::mbarrier_wait(raw_full + 8 * (j & 1), (j >> 1) & 1);
      const unsigned char* const from = raw + (j & 1) * kRaw;
      float4 left[4];
      float2 right[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        left[part] = *reinterpret_cast<const float4*>(from + from_row[part]);
        right[part] = *reinterpret_cast<const float2*>(from + from_row[part] + 16);
      }
      cudal2::mbarrier_wait(v_empty + 8 * (j & 3), ((j >> 2) & 1) ^ 1);
      double2* const to_cell = reinterpret_cast<double2*>(v + (j & 3) * kCell) + lane;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const double d0 = left[part].x, d1 = left[part].y, d2 = left[part].z, d3 = left[part].w;
        const double d4 = right[part].x, d5 = right[part].y;
        if (part < 3 || lane < 12) {
          double2* const to = to_cell + 32 * part;
          to[0] = make_double2(d0 - d2, d2 - d4);
          to[kPoint / 2] = make_double2(d1 + d2, d3 + d4);
          to[kPoint] = make_double2(d2 - d1, d4 - d3);
          to[3 * kPoint / 2] = make_double2(d3 - d1, d5 - d3);
        }
      }
      __syncwarp();
      if (lane == 0) cudal2::mbarrier_arrive(v_full + 8 * (j & 3));
      __syncwarp();
    };

    const int f = (lane & 2) | ((lane >> 2) & 1);
    const bool bit0 = lane & 1, bit1 = lane & 2, bit2 = lane & 4, bit3 = lane & 8;
    const int channel = (bit0 ? 8 : 0) + (bit1 ? 4 : 0) + (bit2 ? 2 : 0) + (bit3 ? 1 : 0);

    if (count > 0) fetch(0);
    if (count > 1) fetch(1);
#pragma unroll 1
    for (int j = -2; j < count; ++j) {
      if (j + 2 < count) {
        transform(j + 2);
        if (j + 4 < count) fetch(j & 1);
      }
      if (j < 0) continue;
      float best[16];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int slot = (j & 1) * 2 + q;
        cudal2::mbarrier_wait(out_full + 8 * slot, (j >> 1) & 1);
        const unsigned char* const from = outs + slot * kOut + lane * 64;
        float values[16];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float4 part = *reinterpret_cast<const float4*>(from + ((c ^ f) << 4));
          values[4 * c] = part.x;
          values[4 * c + 1] = part.y;
          values[4 * c + 2] = part.z;
          values[4 * c + 3] = part.w;
        }
        __syncwarp();
        if (lane == 0) cudal2::mbarrier_arrive(out_empty + 8 * slot);
        float most[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) most[c] = fmaxf(values[c], values[c + 8]);
#pragma unroll
        for (int c = 0; c < 4; ++c) most[c] = fmaxf(most[c], most[c + 4]);
        most[0] = fmaxf(fmaxf(most[0], most[2]), fmaxf(most[1], most[3]));
        const float scale = 1.4426950408889634f;
        const float shift = -(most[0] * scale);
        float total[4];
#pragma unroll
        for (int c = 0; c < 16; ++c) {
          values[c] = exp2_fast(fmaf(values[c], scale, shift));
          total[c & 3] = c < 4 ? values[c] : total[c & 3] + values[c];
        }
        const float inverse = reciprocal((total[0] + total[1]) + (total[2] + total[3]));
#pragma unroll
        for (int c = 0; c < 16; ++c) {
          const float value = values[c] * inverse;
          best[c] = q == 0 ? value : max_nan(best[c], value);
        }
      }
      halve<16>(best, bit0, 1);
      halve<8>(best, bit1, 2);
      halve<4>(best, bit2, 4);
      halve<2>(best, bit3, 8);
      const float one = max_nan(best[0], __shfl_xor_sync(0xFFFFFFFFu, best[0], 16));
      if (lane < 16) target[channel * volume + inside] = one;
      if (++inside == volume) {
        inside = 0;
        target += 16 * volume;
      }
    }
    return;
  }

  cudal2::registers_increase<208>();

  // Weights of the four points: taps by the thread in its quad, channels by the quad.
  double f[4][2][6];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      const int u = 4 * (i & 1) + tig;            // input channel and kh
      const int kd = i >> 1;
      const float* const at = weight + (8 * n + g) * 81 + (u / 3) * 27 + kd * 9 + (u % 3) * 3;
      const double g0 = static_cast<double>(load_ordered(at));
      const double g1 = static_cast<double>(load_ordered(at + 1));
      const double g2 = static_cast<double>(load_ordered(at + 2));
      f[0][n][i] = g0;
      f[1][n][i] = 0.5 * ((g0 + g2) + g1);
      f[2][n][i] = 0.5 * ((g0 + g2) - g1);
      f[3][n][i] = g2;
    }
  }
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 6; ++i) asm volatile("mov.f64 %0, %0;" : "+d"(f[p][n][i]));
    }
  }

  // Where this lane reads: tile g & 1, h = g >> 1, and its tap of each group of four; d by q and the half.
  const int place = 2 * (g >> 1) + (g & 1);
  const int base0 = place + (tig < 3 ? 2 * tig : 72);
  const int base1 = place + (tig < 2 ? 74 + 2 * tig : 140 + 2 * tig);
  const int base2 = place + 148 + (tig < 3 ? 12 * tig : 0);
  const int swap = (g & 2) | ((g >> 2) & 1);
  const int put0 = g * 64 + (((tig >> 1) ^ swap) << 4) + (tig & 1) * 8;
  const int put1 = put0 ^ 32;

  const double* const tail = tails + lane;
#pragma unroll 1
  for (int j = warp >> 2; j < count; j += 2) {   // the even or the odd cells of the team
    const int buffer = j & 3;
    const double* const cell = v + buffer * kCell;
    cudal2::mbarrier_wait(v_full + 8 * buffer, (j >> 2) & 1);
#pragma unroll 1
    for (int q = 0; q < 2; ++q) {
      const double* const p0 = cell + 24 * q + base0;
      const double* const p1 = cell + 24 * q + base1;
      const double* const p2 = cell + 24 * q + base2;
      double s[2][4], t[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const double2 begin = biases[4 * n + tig];
        s[n][0] = s[n][2] = begin.x;
        s[n][1] = s[n][3] = begin.y;
#pragma unroll
        for (int e = 0; e < 4; ++e) t[n][e] = 0.0;
      }
      multiply(s, p0 + kPoint, p1 + kPoint, p2 + kPoint, f[1], tail + 64);
      multiply(t, p0 + 2 * kPoint, p1 + 2 * kPoint, p2 + 2 * kPoint, f[2], tail + 128);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const double sum = s[n][e] + t[n][e];
          t[n][e] = s[n][e] - t[n][e];
          s[n][e] = sum;
        }
      }
      multiply(s, p0, p1, p2, f[0], tail);
      multiply(t, p0 + 3 * kPoint, p1 + 3 * kPoint, p2 + 3 * kPoint, f[3], tail + 192);

      const int slot = (j & 1) * 2 + q;
      cudal2::mbarrier_wait(out_empty + 8 * slot, ((j >> 1) & 1) ^ 1);
      unsigned char* const to = outs + slot * kOut;
#pragma unroll
      for (int half = 0; half < 2; ++half) {   // position: 16 * output + 8 * half + g
        *reinterpret_cast<float2*>(to + put0 + half * 512) =
            make_float2(__double2float_rn(s[0][2 * half]), __double2float_rn(s[0][2 * half + 1]));
        *reinterpret_cast<float2*>(to + put1 + half * 512) =
            make_float2(__double2float_rn(s[1][2 * half]), __double2float_rn(s[1][2 * half + 1]));
        *reinterpret_cast<float2*>(to + put0 + half * 512 + 1024) =
            make_float2(__double2float_rn(t[0][2 * half]), __double2float_rn(t[0][2 * half + 1]));
        *reinterpret_cast<float2*>(to + put1 + half * 512 + 1024) =
            make_float2(__double2float_rn(t[1][2 * half]), __double2float_rn(t[1][2 * half + 1]));
      }
      __syncwarp();
      if (lane == 0) {
        cudal2::mbarrier_arrive(out_full + 8 * slot);
        if (q == 1) cudal2::mbarrier_arrive(v_empty + 8 * buffer);
      }
      __syncwarp();
    }
  }
}
