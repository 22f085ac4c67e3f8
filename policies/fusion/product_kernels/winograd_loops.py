"""CUDA C++ of minimal filtering (Winograd): the transforms, and the loop over channels between them.

Of a line, two outputs of three taps take four products of transformed numbers instead of six. In two dimensions a tile of
2 by 2 outputs has 16 points, in three one of 2 by 2 by 2 has 64. For each point the sums over the channels are a matrix
product.
`G` has the geometry: sizes, strides and pads, of which those of depth are unused in two dimensions.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks.
"""

WINOGRAD_HEADERS = ("bulk", "mbarrier")

WINOGRAD = """\
// Four numbers of a line, `Step` apart, as the products take them.
template <int Step>
__device__ __forceinline__ void transform_line(float* v) {
  const float d0 = v[0], d1 = v[Step], d2 = v[2 * Step], d3 = v[3 * Step];
  v[0] = d0 - d2;
  v[Step] = d1 + d2;
  v[2 * Step] = d2 - d1;
  v[3 * Step] = d1 - d3;
}
__device__ __forceinline__ void transform_plane(float (&v)[16]) {
#pragma unroll
  for (int y = 0; y < 4; ++y) transform_line<1>(v + 4 * y);
#pragma unroll
  for (int x = 0; x < 4; ++x) transform_line<4>(v + x);
}
// Three taps of a line, in the places of four.
template <int Step>
__device__ __forceinline__ void transform_taps(double* g) {
  const double even = g[0] + g[2 * Step], odd = g[Step], last = g[2 * Step];
  g[Step] = (even + odd) * 0.5;
  g[2 * Step] = (even - odd) * 0.5;
  g[3 * Step] = last;
}
// The points of a plane as 2 by 2 outputs. `m`: of the first, others `Step` apart.
template <int Step>
__device__ __forceinline__ void outputs_of_plane(const float* m, float (&to)[4]) {
  float rows[4][2];
#pragma unroll
  for (int y = 0; y < 4; ++y) {
    const float m0 = m[4 * y * Step], m1 = m[(4 * y + 1) * Step], m2 = m[(4 * y + 2) * Step], m3 = m[(4 * y + 3) * Step];
    rows[y][0] = m0 + m1 + m2;
    rows[y][1] = m1 - m2 - m3;
  }
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    to[x] = rows[0][x] + rows[1][x] + rows[2][x];
    to[2 + x] = rows[1][x] - rows[2][x] - rows[3][x];
  }
}

// A CTA: `O` channels of the result at `T` tiles. A thread: `TO` by `TI` of one point, and the transform of a tile a step, in
// which there are as many channels as there are threads for each tile. Channels of the result and tiles are kept in fours, so
// that neighbouring threads read neighbours.
template <class G, int O, int T, int TO, int TI>
struct Winograd {
  static constexpr int kPoints = G::kPoints, kAcrossO = O / TO, kAcrossT = T / TI, kThreads = kPoints * kAcrossO * kAcrossT;
  static constexpr int kChannels = kThreads / T, kSteps = (G::kIn + kChannels - 1) / kChannels, kInPadded = kSteps * kChannels;
  static constexpr int kApart = kAcrossT * 4, kPiece = (kPoints + 1) * kApart;  // of points; of fours: tiles meet all banks
  static constexpr int kChannelV = (kPoints + 1) * T, kStageV = kChannels * kChannelV;
  static constexpr int kChannelU = kPoints * O, kStageU = kChannels * kChannelU;
  static constexpr int kRound = kAcrossO * 4, kLine = T + 4, kSums = kPoints * kLine + 4;  // channels stored together; of one

  // Where the number of a point, and a channel of the result, lies among those of a channel.
  static __device__ __forceinline__ unsigned place(unsigned point, unsigned o) {
    return ((o / kRound * kPoints + point) * kAcrossO + o % kRound / 4) * 4 + o % 4;
  }

  // The taps of a channel and a channel of the result, for each thread.
  static __device__ __forceinline__ void filter(const float* __restrict__ weight, float* __restrict__ to) {
    constexpr unsigned kOutPadded = (G::kOut + O - 1) / O * O;
    const unsigned i = blockIdx.x * 128 + threadIdx.x, out = i % kOutPadded, in = i / kOutPadded;
    if (in >= kInPadded) return;
    constexpr int kPlanes = G::kDims == 3 ? 3 : 1;
    double g[kPoints] = {};
    if (in < G::kIn && out < G::kOut) {
      const float* from = weight + out * G::kTapsOut + in * G::kTapsIn + G::kTapsFirst;
#pragma unroll
      for (int z = 0; z < kPlanes; ++z)
#pragma unroll
        for (int y = 0; y < 3; ++y)
#pragma unroll
          for (int x = 0; x < 3; ++x) g[z * 16 + y * 4 + x] = from[z * G::kTapsZ + y * G::kTapsY + x * G::kTapsX];
    }
#pragma unroll
    for (int z = 0; z < kPlanes; ++z) {
#pragma unroll
      for (int y = 0; y < 3; ++y) transform_taps<1>(g + z * 16 + y * 4);
#pragma unroll
      for (int x = 0; x < 4; ++x) transform_taps<4>(g + z * 16 + x);
    }
    if constexpr (G::kDims == 3) {
#pragma unroll
      for (int p = 0; p < 16; ++p) transform_taps<16>(g + p);
    }
    to += (out / O * kInPadded + in) * kChannelU;
#pragma unroll
    for (int p = 0; p < kPoints; ++p) to[place(p, out % O)] = static_cast<float>(g[p]);
  }

  // 4 by 4 numbers of a channel. `inside`: a bit for each.
  static __device__ __forceinline__ void load_plane(float (&v)[16], const float* from, unsigned inside) {
#pragma unroll
    for (int y = 0; y < 4; ++y) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float* at = from + y * G::kY + x * G::kX;
        const bool there = inside >> (4 * y + x) & 1u;
        if (G::kPairs >= 0 && (x + G::kPairs) % 2 == 0 && x < 3) {  // both or none are there
          const Pack<float, 2> two = there ? load_pack<2>(at) : Pack<float, 2>{};
          v[4 * y + x] = two.v[0];
          v[4 * y + x + 1] = two.v[1];
        } else if (G::kPairs < 0 || (G::kPairs == 1 && x % 3 == 0)) {
          v[4 * y + x] = there ? *at : 0.0f;
        }
      }
    }
  }

  // The tile that a thread transforms.
  struct Tile {
    const float* x;
    float* to;
    int at;  // in x
    unsigned channel, inside = 0;  // a bit for each number of a plane, then for each plane

    __device__ __forceinline__ Tile(const float* from, float* v, unsigned first) : x(from) {
      const unsigned slot = threadIdx.x % T, tile = first + slot;
      channel = threadIdx.x / T;
      const int left = tile % G::kTilesX * 2 - G::kPadX, top = tile / G::kTilesX % G::kTilesY * 2 - G::kPadY;
      const int front = tile / (G::kTilesX * G::kTilesY) % G::kTilesZ * 2 - G::kPadZ;
      const unsigned image = tile / (G::kTilesX * G::kTilesY * G::kTilesZ);
      at = image * G::kImage + channel * G::kChannel + front * G::kZ + top * G::kY + left * G::kX;
      to = v + channel * kChannelV + slot / kApart * kPiece + slot % kApart;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const unsigned y = top + i / 4, x_at = left + i % 4;
        if (image < G::kImages && y < G::kHeight && x_at < G::kWidth) inside |= 1u << i;
      }
      if constexpr (G::kDims == 3) {
#pragma unroll
        for (int z = 0; z < 4; ++z)
          if (static_cast<unsigned>(front + z) < G::kDepth) inside |= 1u << (16 + z);
      }
    }

    __device__ __forceinline__ void load(float (&v)[16], int z) const {
      const bool there = (G::kDims == 2 || inside >> (16 + z) & 1u) && (G::kIn % kChannels == 0 || channel < G::kIn);
      load_plane(v, x + at + z * G::kZ, there ? inside : 0);
    }

    // The next channels' numbers, into a stage.
    __device__ __forceinline__ void transform(unsigned stage) {
      float* const v = to + stage * kStageV;
      if constexpr (G::kDims == 2) {
        float one[16];
        load(one, 0);
        transform_plane(one);
#pragma unroll
        for (int p = 0; p < 16; ++p) v[p * kApart] = one[p];
      } else {  // three planes are loaded together, and the fourth behind the first
        float one[16], two[16], other[16];
        load(other, 0);
        load(two, 2);
        load(one, 1);
        transform_plane(other);
        transform_plane(two);
#pragma unroll
        for (int p = 0; p < 16; ++p) v[p * kApart] = other[p] - two[p];
        load(other, 3);
        transform_plane(one);
#pragma unroll
        for (int p = 0; p < 16; ++p) {
          v[(16 + p) * kApart] = one[p] + two[p];
          v[(32 + p) * kApart] = two[p] - one[p];
        }
        transform_plane(other);
#pragma unroll
        for (int p = 0; p < 16; ++p) v[(48 + p) * kApart] = one[p] - other[p];
      }
      at += kChannels * G::kChannel;
      channel += kChannels;
    }
  };

  // The sums of a thread. `filters`: those of the CTA's channels of the result; `first`: of its tiles.
  static __device__ __forceinline__ void multiply(const float* x, const float* filters, unsigned first, float (&sum)[TO][TI]) {
    extern __shared__ float4 shared_memory[];
    float* const shared = reinterpret_cast<float*>(shared_memory);
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    constexpr unsigned kBytesU = kStageU * 4;
    constexpr int kMain = 2 * kStageV + kStageU, kAfter = kRound * kSums;
    const unsigned u = address + 2 * kStageV * 4, barrier = address + (kMain > kAfter ? kMain : kAfter) * 4;
    if (threadIdx.x == 0) {
      cudal2::mbarrier_init(barrier, 1);
      cudal2::mbarrier_init_fence();
      cudal2::mbarrier_arrive_expect(barrier, kBytesU);
      cudal2::bulk_load(u, filters, kBytesU, barrier);
    }
    Tile tile(x, shared, first);
    tile.transform(0);
    __syncthreads();
    const unsigned lane_o = threadIdx.x % kAcrossO, across = threadIdx.x / kAcrossO;  // across: the point, and fours of tiles
    const float *vs = shared + across * 4, *us = shared + 2 * kStageV + (across / kAcrossT * kAcrossO + lane_o) * 4;
    // Of two warps that share an issue port, one transforms while one multiplies.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll 1
      for (unsigned part = 0; part < 2; ++part) {
        if (part == threadIdx.x / 128 % 2) {
          if (step + 1 < kSteps) tile.transform((step + 1) % 2);
          continue;
        }
        cudal2::mbarrier_wait(barrier, step % 2);
        const float* const stage = vs + step % 2 * kStageV;
#pragma unroll(TO * TI > 128 ? 1 : 2)  // registers are left for no more numbers
        for (int k = 0; k < kChannels; ++k) {
          Pack<float, 4> v[TI / 4], w[TO / 4];
#pragma unroll
          for (int i = 0; i < TI / 4; ++i) v[i] = load_pack<4>(stage + k * kChannelV + i * kPiece);
#pragma unroll
          for (int o = 0; o < TO / 4; ++o) w[o] = load_pack<4>(us + k * kChannelU + o * (kPoints * kRound));
#pragma unroll
          for (int o = 0; o < TO; ++o)
#pragma unroll
            for (int i = 0; i < TI; ++i) sum[o][i] = fmaf(v[i / 4].v[i % 4], w[o / 4].v[o % 4], sum[o][i]);
        }
      }
      __syncthreads();  // the filters and this stage have been read, the other stage is written
      if (threadIdx.x == 0 && step + 1 < kSteps) {
        cudal2::mbarrier_arrive_expect(barrier, kBytesU);
        cudal2::bulk_load(u, filters + (step + 1) * kStageU, kBytesU, barrier);
      }
    }
  }

  // Puts the sums of a round of channels where `outputs` finds them.
  static __device__ __forceinline__ void share(const float (&sum)[TO][TI], int round) {
    extern __shared__ float4 shared_memory[];
    const unsigned across = threadIdx.x / kAcrossO, point = across / kAcrossT, o = threadIdx.x % kAcrossO * 4;
    float* const to = reinterpret_cast<float*>(shared_memory) + o * kSums + point * kLine + across % kAcrossT * 4;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int i = 0; i < TI; i += 4) {
        const float* from = sum[round * 4 + r] + i;
        store_pack(to + r * kSums + i / 4 * kApart, Pack<float, 4>{{from[0], from[1], from[2], from[3]}});
      }
    __syncthreads();
  }

  // The outputs of a tile, with those of a line side by side.
  static __device__ __forceinline__ void outputs(unsigned slot, unsigned o, float (&to)[1 << G::kDims]) {
    extern __shared__ float4 shared_memory[];
    const float* const from = reinterpret_cast<const float*>(shared_memory) + o * kSums + slot;
    if constexpr (G::kDims == 2) {
      outputs_of_plane<kLine>(from, to);
    } else {
      float one[4], two[4], other[4];
      outputs_of_plane<kLine>(from + 16 * kLine, one);
      outputs_of_plane<kLine>(from + 32 * kLine, two);
      outputs_of_plane<kLine>(from, other);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = other[i] + one[i] + two[i];
      outputs_of_plane<kLine>(from + 48 * kLine, other);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[4 + i] = one[i] - two[i] - other[i];
    }
  }
};
"""
