// Boxes of tensors in global memory, which tensor maps describe, and their lines in shared memory.
#pragma once

#include <algorithm>

#include "machine/machine.hpp"

namespace emulator {

constexpr u32 kMaxDimensions = 5;

// One box of a tensor map, at coordinates in elements, innermost first.
struct Box {
  const TensorMap* map = nullptr;
  i64 at[kMaxDimensions] = {};

  u32 row_bytes() const { return map->box[0] * map->element_bytes; }
  u32 rows() const {
    u32 count = 1;
    for (u32 i = 1; i < map->rank; ++i) count *= map->box[i];
    return count;
  }
  u32 bytes() const { return row_bytes() * rows(); }

  // The global address of a row's first element, and the elements [begin, end) of it that lie inside the tensor.
  u64 row(u32 index, u32* begin, u32* end) const {
    u64 address = map->address;
    bool inside = true;
    for (u32 i = 1; i < map->rank; ++i) {
      const i64 place = at[i] + index % map->box[i];
      index /= map->box[i];
      inside = inside && place >= 0 && static_cast<u64>(place) < map->sizes[i];
      address += static_cast<u64>(place) * map->strides[i];
    }
    const i64 size = static_cast<i64>(map->sizes[0]), width = map->box[0];
    *begin = static_cast<u32>(std::clamp<i64>(-at[0], 0, width));
    *end = inside ? static_cast<u32>(std::clamp<i64>(size - at[0], *begin, width)) : *begin;
    return address + static_cast<u64>(at[0]) * map->element_bytes;
  }

  // The offset of a byte of the box in shared memory: the swizzle permutes chunks of 16 bytes by bits of the address.
  u32 swizzled(u32 offset) const {
    switch (map->swizzle) {
      case 128:
        return offset ^ (offset >> 3 & 0x70);
      case 64:
        return offset ^ (offset >> 3 & 0x30);
      case 32:
        return offset ^ (offset >> 3 & 0x10);
      default:
        return offset;
    }
  }
};

// Copies between a row of a box and shared memory, chunk by chunk.
template <typename Copy>
void each_chunk(const Box& box, u32 offset, u32 row, Copy&& copy) {
  const u32 bytes = box.row_bytes(), start = offset + row * bytes;
  for (u32 done = 0; done < bytes;) {
    const u32 at = start + done, step = std::min(16 - at % 16, bytes - done);
    copy(done, box.swizzled(at), step);
    done += step;
  }
}

// The operands of an instruction with a tensor map.
constexpr Operand kMap = address("map", Field::kB, 8);
constexpr Operand kCoordinates = list("coordinates", 4);

// The tensor map at a generic address, which must be a parameter's; null after a report. Maps elsewhere, as in global memory,
// take a fence.proxy.tensormap, which the emulator does not support.
const TensorMap* map_at(Warp& warp, const Op& op, int lane, u64 address);

// Finds the box of one lane by the operands above; false after a report.
bool find_box(Warp& warp, const Op& op, int lane, Box* box, bool stores);

// Records the accesses to a tensor in global memory. Accesses to read-only memory need no order.
void touch_rows(Warp& warp, const Op& op, int lane, const Box& box, Access access);

// ---- shared memory ----------------------------------------------------------------------------------------------------------
// Whether an address in shared memory lies on `bytes` bytes, as the hardware asks; false after a report.
bool aligned(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, const char* what);

// One lane's address in shared memory, which as a generic one has 8 bytes.
inline u32 shared_address(Warp& warp, const Op& op, const Operand& operand, int lane) {
  const u32 bytes = operand.bytes_of(op);
  u64 address = lane_address(warp, operand(op), bytes, lane);
  if (bytes == 8 && address - kSharedWindow < kWindow) address -= kSharedWindow;
  return static_cast<u32>(address) + static_cast<u32>(operand.offset_of(op));
}

}  // namespace emulator
