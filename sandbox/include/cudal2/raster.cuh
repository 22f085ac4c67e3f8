// The order in which tiles of the output are visited.
#pragma once

namespace cudal2 {

struct TileIndex {
  int m;
  int n;
};

// Walks `kGroup` rows of tiles at a time, column by column, so that tiles in flight together share rows of A and columns of B.
template <int kGroup>
__device__ __forceinline__ TileIndex grouped_raster(int tile, int tiles_m, int tiles_n) {
  const int per_group = kGroup * tiles_n;
  const int first = tile / per_group * kGroup;
  const int rows = min(tiles_m - first, kGroup);
  const int local = tile % per_group;
  return {first + local % rows, local / rows};
}

}  // namespace cudal2
