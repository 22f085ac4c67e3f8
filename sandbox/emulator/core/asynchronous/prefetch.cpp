// Prefetches into caches: of lines and ranges of global memory, of boxes of tensors, of tensor maps.
//
// They change nothing that a kernel reads, and hardware drops what is not mapped. But what lies outside the launch's own
// buffers belongs to other launches, whose operands would then be in the cache before their turn.
#include "asynchronous/tensor_box.hpp"
#include "memory/access.hpp"

namespace emulator {

namespace {

constexpr u64 kLine = 128;
constexpr Operand kBytes = optional(slot("bytes", Field::kD, 4));  // of a bulk prefetch; a line where there is none

u64 line_of(u64 address) { return address / kLine * kLine; }

// Whether the lines of a range all have bytes of one buffer.
bool within(Run& run, u64 address, u64 bytes) {
  for (const Buffer& buffer : run.buffers) {
    const u64 begin = line_of(buffer.base), end = line_of(buffer.base + buffer.size + kLine - 1);
    if (address >= begin && address < end && bytes <= end - address) return true;
  }
  return false;
}

bool in_a_window(u64 address) {
  return address - kSharedWindow < kWindow || address - kLocalWindow < kWindow || address - kParamWindow < kWindow;
}

void prefetch(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = effective_address<u64>(warp, op, lane);
    if (space_of(op) == kGeneric && in_a_window(address)) continue;
    const u32 bytes = kBytes(op) ? warp.lanes<u32>(kBytes(op))[lane] : 1;
    if (kBytes(op) && (bytes % 16 || address % 16)) {
      report(warp, op, 1u << lane, detector::kMisaligned, address,
             "a bulk prefetch's address and size must be multiples of 16 bytes");
      continue;
    }
    if (bytes && !within(*warp.run, address, bytes)) report_out_of_global(warp, op, lane, address, bytes, "prefetch");
  }
}

// A box is clipped to its tensor, so that only the map can be wrong.
void prefetch_box(Warp& warp, const Op& op, u32 mask) {
  Box box;
  for (u32 left = mask; left; left &= left - 1) find_box(warp, op, std::countr_zero(left), &box, false);
}

void prefetch_map(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = effective_address<u64>(warp, op, lane);
    map_at(warp, op, lane, space_of(op) == kParam ? kParamWindow + address : address);
  }
}

}  // namespace

void register_prefetch(Registry& to) {
  to.add("prefetch", prefetch, {kAddressOf<u64>, kSpaceOf, kBytes});
  to.add("prefetch.box", prefetch_box, {kMap, kCoordinates});
  to.add("prefetch.map", prefetch_map, {kAddressOf<u64>, kSpaceOf});
}

}  // namespace emulator
