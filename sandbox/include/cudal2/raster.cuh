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

// As grouped_raster, by rows of tiles or, with kByColumns, by columns. With kSnake every second group is walked backwards, so
// that it begins with the operands that the group before it ended with.
template <int kGroup, bool kByColumns, bool kSnake>
__device__ __forceinline__ TileIndex ordered_raster(int tile, int tiles_m, int tiles_n) {
  const int across = kByColumns ? tiles_n : tiles_m, along = kByColumns ? tiles_m : tiles_n;
  const int group = tile / (kGroup * along), local = tile % (kGroup * along);
  const int width = min(across - group * kGroup, kGroup);
  const int within = group * kGroup + local % width;
  const int step = kSnake && group % 2 ? along - 1 - local / width : local / width;
  return kByColumns ? TileIndex{step, within} : TileIndex{within, step};
}

}  // namespace cudal2
