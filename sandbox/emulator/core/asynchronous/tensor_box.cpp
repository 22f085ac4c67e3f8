#include "asynchronous/tensor_box.hpp"

namespace emulator {

namespace {

// Why the hardware refuses a box, or stores it wrongly. This is not documented: an H200 ends a kernel with an illegal
// instruction if a box does not start on 16 bytes, or if a store starts outside the tensor. It stores rows in pieces of 16
// bytes, past their end. Source: tests/sandbox/emulator/golden.
std::string refusal(const Box& box, bool stores) {
  const TensorMap& map = *box.map;
  if (box.at[0] * map.element_bytes % 16) {
    return "the first coordinate is " + std::to_string(box.at[0]) +
           ", so that the box does not start on 16 bytes of global memory";
  }
  if (!stores) return "";
  for (u32 i = 0; i < map.rank; ++i) {
    if (box.at[i] < 0) return "a store starts at coordinate " + std::to_string(box.at[i]) + ", outside the tensor";
  }
  const u64 size = map.sizes[0], bytes = size * map.element_bytes;
  if (bytes % 16 && static_cast<u64>(box.at[0]) + map.box[0] > size) {
    return "a store past the end of rows of " + std::to_string(bytes) + " bytes, not a multiple of 16, writes past their end";
  }
  return "";
}

}  // namespace

const TensorMap* map_at(Warp& warp, const Op& op, int lane, u64 address) {
  Run& run = *warp.run;
  const u64 offset = address - kParamWindow;
  if (offset < kWindow && run.map_parameters.count(static_cast<u32>(offset))) {
    u64 words[2];
    std::memcpy(words, run.launch.parameters.data() + offset, sizeof words);
    if (words[1] < run.maps.size() && offset % 64 == 0) return &run.maps[words[1]];
  }
  report(warp, op, 1u << lane, detector::kTensorMap, address,
         "the address is not that of a tensor map among the kernel's parameters");
  return nullptr;
}

bool find_box(Warp& warp, const Op& op, int lane, Box* box, bool stores) {
  box->map = map_at(warp, op, lane, warp.lanes<u64>(kMap(op))[lane] + static_cast<u64>(op.imm));
  if (!box->map) return false;
  if (box->map->rank != op.count) {
    report(warp, op, 1u << lane, detector::kTensorMap, 0,
           std::to_string(op.count) + " coordinates for a tensor of " + std::to_string(box->map->rank) + " dimensions");
    return false;
  }
  for (u32 i = 0; i < op.count; ++i) box->at[i] = warp.lanes<i32>(warp.run->program.lists[op.list + i])[lane];
  if (box->map->swizzle && box->row_bytes() != box->map->swizzle) {
    report(warp, op, 1u << lane, detector::kUnsupported, 0, "a box whose rows are shorter than its swizzle");
    warp.run->stopped = true;
    return false;
  }
  const std::string broken = refusal(*box, stores);
  if (broken.empty()) return true;
  report(warp, op, 1u << lane, detector::kTensorMap, 0, broken);
  return false;
}

void touch_rows(Warp& warp, const Op& op, int lane, const Box& box, Access access) {
  const Buffer* buffer = buffer_at(*warp.run, box.map->address);
  if (!buffer) {
    report(warp, op, 1u << lane, detector::kGlobalOutOfBounds, box.map->address, "a tensor map over memory out of bounds");
    return;
  }
  const bool ordered = warp.run->options.races && buffer->shadow;
  const bool dependent = running(warp) & kRunningOthers;
  if (!ordered && !dependent && (access == Access::kRead || buffer->writable)) return;
  for (u32 row = 0; row < box.rows(); ++row) {
    u32 begin = 0, end = 0;
    const u64 address = box.row(row, &begin, &end);
    if (begin == end) continue;
    const u32 size = box.map->element_bytes;
    Touch touch;
    touch.async = true;
    if (!global_at(warp, op, lane, address + static_cast<u64>(begin) * size, (end - begin) * size, access, nullptr, touch))
      return;
    if (!ordered) return;
  }
}

bool aligned(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, const char* what) {
  if (address % bytes == 0) return true;
  report(warp, op, 1u << lane, detector::kMisaligned, address,
         std::string(what) + " in shared memory must lie on " + std::to_string(bytes) + " bytes");
  return false;
}

}  // namespace emulator
