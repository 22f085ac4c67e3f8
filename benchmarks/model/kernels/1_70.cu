/* cudal2: {
 "arch": "sm_90a",
 "launches": [
  {"entry": "prepare", "grid": ["ceil(in_channels*24/128)", 1, 1], "block": [128, 1, 1], "args": [
   {"tensor": "conv_transpose3d_weight"}, {"workspace": 0}, {"scalar": "in_channels"}]},
  {"entry": "winograd", "grid": ["ceil((width//2+1)/7)", "ceil(ceil((depth+2)/2)*ceil((height+2)/2)/2)", "batch_size"],
   "block": [128, 1, 1], "dynamic_smem": 114704, "args": [
   {"tensor": "x"}, {"workspace": 0}, {"tensor": "conv_transpose3d_weight"}, {"tensor": "out", "access": "write"},
   {"scalar": "in_channels"}, {"scalar": "depth"}, {"scalar": "height"}, {"scalar": "width"}]}],
 "workspace": {"bytes": "6144*in_channels"},
 "requires": ["in_channels%8==0", "out_channels==24", "kernel_size==3", "width%2==0"]
} */
#include <cstdint>
#include <cudal2/bulk.cuh>
#include <cudal2/mbarrier.cuh>

constexpr int kOut = 24;
constexpr int kChunk = 8;                    // input channels at a time
constexpr int kChannelV = 64 * 16;           // floats: 64 points, 16 slots of tiles
constexpr int kBufferV = kChunk * kChannelV;
constexpr int kChannelU = 64 * kOut;         // floats: [3][64 points][2 halves][4]
constexpr int kFloatsV = 2 * kBufferV, kFloatsU = kChunk * kChannelU;
constexpr unsigned kBytesU = kFloatsU * 4;

// A thread transforms the turned filter of one pair of channels.
extern "C" __global__ void __launch_bounds__(128) prepare(const float* weight, float* transformed, int in_channels) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= in_channels * kOut) return;
  const int ci = i / kOut, co = i % kOut;
  const float* from = weight + static_cast<long long>(i) * 27;
  float* to = transformed + static_cast<long long>(ci) * kChannelU + co % 12 / 4 * 512 + co / 12 * 4 + co % 4;
  for (int pz = 0; pz < 4; ++pz) {
    double plane[3][3];
#pragma unroll
    for (int y = 0; y < 3; ++y) {
#pragma unroll
      for (int x = 0; x < 3; ++x) {
        const double g0 = from[18 + (2 - y) * 3 + 2 - x], g1 = from[9 + (2 - y) * 3 + 2 - x], g2 = from[(2 - y) * 3 + 2 - x];
        plane[y][x] = pz == 0 ? g0 : pz == 1 ? (g0 + g1 + g2) * 0.5 : pz == 2 ? (g0 - g1 + g2) * 0.5 : g2;
      }
    }
    for (int py = 0; py < 4; ++py) {
      double row[3];
#pragma unroll
      for (int x = 0; x < 3; ++x) {
        const double g0 = plane[0][x], g1 = plane[1][x], g2 = plane[2][x];
        row[x] = py == 0 ? g0 : py == 1 ? (g0 + g1 + g2) * 0.5 : py == 2 ? (g0 - g1 + g2) * 0.5 : g2;
      }
      float* point = to + (pz * 16 + py * 4) * 8;
      point[0] = static_cast<float>(row[0]);
      point[8] = static_cast<float>((row[0] + row[1] + row[2]) * 0.5);
      point[16] = static_cast<float>((row[0] - row[1] + row[2]) * 0.5);
      point[24] = static_cast<float>(row[2]);
    }
  }
}

// Both inner dimensions of the input transform.
__device__ __forceinline__ void transform_plane(float (&v)[4][4]) {
#pragma unroll
  for (int y = 0; y < 4; ++y) {
    const float d0 = v[y][0], d1 = v[y][1], d2 = v[y][2], d3 = v[y][3];
    v[y][0] = d0 - d2;
    v[y][1] = d1 + d2;
    v[y][2] = d2 - d1;
    v[y][3] = d1 - d3;
  }
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const float d0 = v[0][x], d1 = v[1][x], d2 = v[2][x], d3 = v[3][x];
    v[0][x] = d0 - d2;
    v[1][x] = d1 + d2;
    v[2][x] = d2 - d1;
    v[3][x] = d1 - d3;
  }
}

__device__ __forceinline__ void load_plane(float (&v)[4][4], const float* from, int width, unsigned inside) {
#pragma unroll
  for (int y = 0; y < 4; ++y) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float2 two = make_float2(0.0f, 0.0f);
      if (inside >> (2 * y + pair) & 1u) two = __ldg(reinterpret_cast<const float2*>(from + y * width + 2 * pair));
      v[y][2 * pair] = two.x;
      v[y][2 * pair + 1] = two.y;
    }
  }
}

__device__ __forceinline__ bool finite(float value) { return fabsf(value) <= 3.402823466e38f; }

extern "C" __global__ void __launch_bounds__(128, 2)
winograd(const float* __restrict__ x, const float* __restrict__ transformed, const float* __restrict__ weight, float* __restrict__ out,
         int in_channels, int depth, int height, int width) {
  extern __shared__ __align__(128) float memory[];
  float* const v_ring = memory;
  float* const u_buffer = memory + kFloatsV;
  const unsigned shared_base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned u_address = shared_base + kFloatsV * 4, barrier = u_address + kBytesU;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int tiles_x = width / 2 + 1, tiles_y = (height + 3) / 2, tiles_z = (depth + 3) / 2;
  const int batch = blockIdx.z, chunks = in_channels / kChunk;
  const int volume = depth * height * width;

  if (tid == 0) {
    cudal2::mbarrier_init(barrier, 1);
    cudal2::mbarrier_init_fence();
    cudal2::mbarrier_arrive_expect(barrier, kBytesU);
    cudal2::bulk_load(u_address, transformed, kBytesU, barrier);
  }

  // The tile of this thread where it transforms: slot 8 * row + 0..6; slots 7 and 15 hold zeros.
  const int slot = tid % 16, half = lane / 16;
  const int tile_row = blockIdx.y * 2 + slot / 8, tx = blockIdx.x * 7 + slot % 8;
  const int tz = tile_row / tiles_y, ty = tile_row % tiles_y;
  const bool tile_inside = slot % 8 < 7 && tx < tiles_x && tz < tiles_z;
  unsigned inside = 0;
  if (tile_inside) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int z = 2 * tz - 2 + i / 8, y = 2 * ty - 2 + i / 2 % 4, column = 2 * tx - 2 + i % 2 * 2;
      if (z >= 0 && z < depth && y >= 0 && y < height && column >= 0 && column < width) inside |= 1u << i;
    }
  }
  const int plane = height * width;
  const float* source = x + static_cast<long long>(batch * in_channels + warp * 2 + half) * volume +
      (((2 * tz - 2) * height + 2 * ty - 2) * width + 2 * tx - 2);
  int place[8];  // of points p with p % 8 = k
#pragma unroll
  for (int k = 0; k < 8; ++k)
    place[k] = (warp * 2 + half) * kChannelV + (k ^ half) * 16 + ((slot / 4) ^ (k / 2)) * 4 + slot % 4;

  auto transform = [&](int chunk) {
    const float* from = source + static_cast<long long>(chunk) * kChunk * volume;
    float* to = v_ring + (chunk & 1) * kBufferV;
    float one[4][4], two[4][4];
    load_plane(one, from + plane, width, inside >> 8);
    load_plane(two, from + 2 * plane, width, inside >> 16);
    transform_plane(one);
    transform_plane(two);
#pragma unroll
    for (int p = 0; p < 16; ++p) {
      to[place[p % 8] + (16 + p - p % 8) * 16] = one[p / 4][p % 4] + two[p / 4][p % 4];
      to[place[p % 8] + (32 + p - p % 8) * 16] = two[p / 4][p % 4] - one[p / 4][p % 4];
    }
    float more[4][4];
    load_plane(more, from, width, inside);
    transform_plane(more);
#pragma unroll
    for (int p = 0; p < 16; ++p) to[place[p % 8] + (p - p % 8) * 16] = more[p / 4][p % 4] - two[p / 4][p % 4];
    load_plane(more, from + 3 * plane, width, inside >> 24);
    transform_plane(more);
#pragma unroll
    for (int p = 0; p < 16; ++p) to[place[p % 8] + (48 + p - p % 8) * 16] = one[p / 4][p % 4] - more[p / 4][p % 4];
  };

  const int point = warp * 16 + lane / 2, part = lane & 1;
  const int turn = point / 2 & 3;
  float sums[16][12];
#pragma unroll
  for (int i = 0; i < 16; ++i)
#pragma unroll
    for (int o = 0; o < 12; ++o) sums[i][o] = 0.0f;

  transform(0);
  __syncthreads();

#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) transform(chunk + 1);
    cudal2::mbarrier_wait(barrier, chunk & 1);
    const float* v_chunk = v_ring + (chunk & 1) * kBufferV;
    const float* u_chunk = u_buffer + point * 8 + part * 4;
#pragma unroll 2
    for (int ci = 0; ci < kChunk; ++ci) {
      const float* v_row = v_chunk + ci * kChannelV + (point ^ (ci & 1)) * 16;
      float v[16], u[12];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const float4 four = *reinterpret_cast<const float4*>(v_row + (h ^ turn) * 4);
        v[4 * h] = four.x;
        v[4 * h + 1] = four.y;
        v[4 * h + 2] = four.z;
        v[4 * h + 3] = four.w;
      }
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        const float4 four = *reinterpret_cast<const float4*>(u_chunk + ci * kChannelU + j * 512);
        u[4 * j] = four.x;
        u[4 * j + 1] = four.y;
        u[4 * j + 2] = four.z;
        u[4 * j + 3] = four.w;
      }
#pragma unroll
      for (int o = 0; o < 12; ++o)
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (i % 8 != 7) sums[i][o] = fmaf(v[i], u[o], sums[i][o]);
    }
    __syncthreads();  // U and this half of V have been read, the other half is written
    if (tid == 0 && chunk + 1 < chunks) {
      cudal2::mbarrier_arrive_expect(barrier, kBytesU);
      cudal2::bulk_load(u_address, transformed + static_cast<long long>(chunk + 1) * kFloatsU, kBytesU, barrier);
    }
  }

  // Sums: row (point, channel) of 16 slots.
#pragma unroll
  for (int o = 0; o < 12; ++o) {
    const int co = part * 12 + o;
    float* row = memory + (point * kOut + (co ^ (point & 1))) * 16;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int piece = h ^ ((point / 2 & 1) | part << 1);
      *reinterpret_cast<float4*>(row + piece * 4) = make_float4(sums[4 * h][o], sums[4 * h + 1][o], sums[4 * h + 2][o], sums[4 * h + 3][o]);
    }
  }
  __syncthreads();
  if (!tile_inside) return;

  const int out_depth = depth + 2, out_height = height + 2, out_width = width + 2;
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
    const int co = tid / 16 + 8 * round;
    float result[2][2][2];  // z, y, x
#pragma unroll
    for (int pz = 0; pz < 4; ++pz) {
      float rows[4][2];
#pragma unroll
      for (int py = 0; py < 4; ++py) {
        float m[4];
#pragma unroll
        for (int px = 0; px < 4; ++px) {
          const int p = pz * 16 + py * 4 + px;
          const int piece = (slot / 4) ^ ((p / 2 & 1) | (co >= 12 ? 2 : 0));
          m[px] = memory[(p * kOut + (co ^ (p & 1))) * 16 + piece * 4 + slot % 4];
        }
        rows[py][0] = m[0] + m[1] + m[2];
        rows[py][1] = m[1] - m[2] - m[3];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float y0 = rows[0][i] + rows[1][i] + rows[2][i], y1 = rows[1][i] - rows[2][i] - rows[3][i];
        if (pz == 0) {
          result[0][0][i] = y0;
          result[0][1][i] = y1;
        } else if (pz == 1) {
          result[0][0][i] += y0;
          result[0][1][i] += y1;
          result[1][0][i] = y0;
          result[1][1][i] = y1;
        } else if (pz == 2) {
          result[0][0][i] += y0;
          result[0][1][i] += y1;
          result[1][0][i] -= y0;
          result[1][1][i] -= y1;
        } else {
          result[1][0][i] -= y0;
          result[1][1][i] -= y1;
        }
      }
    }
    float* const target = out + static_cast<long long>(batch * kOut + co) * out_depth * out_height * out_width;
    bool good = true;
#pragma unroll
    for (int z = 0; z < 2; ++z) {
#pragma unroll
      for (int y = 0; y < 2; ++y) {
        good = good && finite(result[z][y][0]) && finite(result[z][y][1]);
        const int oz = 2 * tz + z, oy = 2 * ty + y;
        if (oz < out_depth && oy < out_height)
          *reinterpret_cast<float2*>(target + (oz * out_height + oy) * out_width + 2 * tx) = make_float2(result[z][y][0], result[z][y][1]);
      }
    }
    if (good) continue;
    // NaN, Inf or an overflow: the plain sum.
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int oz = 2 * tz + i / 4, oy = 2 * ty + i / 2 % 2, ox = 2 * tx + i % 2;
      if (oz >= out_depth || oy >= out_height) continue;
      float sum = 0.0f;
#pragma unroll 1
      for (int ci = 0; ci < in_channels; ++ci) {
        const float* filter = weight + (ci * kOut + co) * 27;
        const float* input = x + static_cast<long long>(batch * in_channels + ci) * volume;
#pragma unroll 1
        for (int tap = 0; tap < 27; ++tap) {
          const int z = oz - tap / 9, y = oy - tap / 3 % 3, column = ox - tap % 3;
          if (z >= 0 && z < depth && y >= 0 && y < height && column >= 0 && column < width)
            sum = fmaf(input[(z * height + y) * width + column], filter[tap], sum);
        }
      }
      target[(oz * out_height + oy) * out_width + ox] = sum;
    }
  }
}
