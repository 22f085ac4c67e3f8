// Bulk copies and reductions into global memory: tensors through tensor maps, and ranges of bytes.
//
// A store belongs to a group and executes when its group is waited for. To the race detector, the agent of the
// warp's stores reads the source from issue to wait.
#include <cstring>
#include <utility>

#include "asynchronous/reduction.hpp"
#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kSource = address("source", Field::kA, Field::kP);
constexpr Operand kTarget = address("target", Field::kB, 8);
constexpr Operand kBytes = slot("bytes", Field::kD, 4);
constexpr Operand kReduction = number("reduction", Field::kR, "Reduction");
constexpr Operand kType = number("type", Field::kS, "TensorType");
constexpr Operand kPendingGroups = number("pending", Field::kImm);  // groups of the waiting lanes that may stay incomplete

struct TensorStore : Pending {
  using Pending::Pending;
  Run* run = nullptr;
  Box box;
  const u8* smem = nullptr;
  u32 offset = 0, how = kStore, instruction = 0;

  void complete() override {
    if (run->trace) return;  // nobody reads the results, and pages of large ones take long to map
    Buffer* buffer = buffer_at(*run, box.map->address);
    if (!buffer || !buffer->writable) return;
    const u32 rows = box.rows(), size = box.map->element_bytes;
    std::vector<u8> line(box.row_bytes());
    for (u32 row = 0; row < rows; ++row) {
      u32 begin = 0, end = 0;
      const u64 address = box.row(row, &begin, &end);
      if (begin == end) continue;
      each_chunk(box, offset, row, [&](u32 done, u32 at, u32 step) { std::memcpy(line.data() + done, smem + at, step); });
      const u64 to = address + static_cast<u64>(begin) * size - buffer->base, count = static_cast<u64>(end - begin) * size;
      if (to > buffer->size || count > buffer->size - to) continue;
      put(buffer->host + to, line.data() + begin * size, count, how, box.map->type);
      if (run->options.taint) [[unlikely]] {
        each_chunk(box, offset, row,
                   [&](u32 done, u32 at, u32 step) { read_taint(*run, *cluster, smem + at, step, line.data() + done); });
        write_taint(*run, *cluster, buffer->host + to, count, line.data() + begin * size, combined_bytes(how, box.map->type),
                    instruction);
      }
    }
  }
};

struct RangeStore : Pending {
  using Pending::Pending;
  u8* target = nullptr;
  const u8* source = nullptr;
  Run* run = nullptr;
  u32 bytes = 0, how = kStore, type = kTypeU8, instruction = 0;

  void complete() override {
    if (run->options.taint) [[unlikely]] {
      move_taint(*run, *cluster, target, source, bytes, combined_bytes(how, type), instruction);
    }
    put(target, source, bytes, how, type);
  }
};

// Records that shared memory is read until the store's group has been waited for.
const u8* source_of(Warp& warp, const Op& op, int lane, u32 address, u32 bytes) {
  Touch touch;
  touch.async = true;
  touch.epoch = {warp.stores(), warp.store_number + 1};
  return shared_range(warp, op, lane, address, bytes, Access::kRead, nullptr, touch);
}

void keep(Warp& warp, const Op& op, int lane, std::shared_ptr<Pending> store) {
  warp.open_stores.push_back({static_cast<u32>(lane), &op, store});
  count_issued(warp);
  warp.run->enqueue(std::move(store));
}

void tensor_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    auto store = std::make_shared<TensorStore>(warp.cta->cluster);
    if (!find_box(warp, op, lane, &store->box, true)) continue;
    const u32 address = shared_address(warp, op, kSource, lane);
    if (!aligned(warp, op, lane, address, 128, "the source of a tensor copy")) continue;
    const u8* smem = source_of(warp, op, lane, address, store->box.bytes());
    if (!smem) continue;
    touch_rows(warp, op, lane, store->box, Access::kWrite);
    store->run = warp.run;
    store->offset = address & kOffsetMask;
    store->smem = smem - store->offset;
    store->how = kReduction(op);
    store->instruction = op.instruction;
    keep(warp, op, lane, std::move(store));
  }
  ++warp.run->events;
}

void range_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 bytes = warp.lanes<u32>(kBytes(op))[lane], address = shared_address(warp, op, kSource, lane);
    const u64 target = warp.lanes<u64>(kTarget(op))[lane] + static_cast<u64>(op.imm);
    if (bytes % 16 || address % 16 || target % 16) {
      report(warp, op, 1u << lane, detector::kMisaligned, target,
             "a bulk copy's addresses and size must be multiples of 16 bytes");
      continue;
    }
    if (!bytes) continue;
    auto store = std::make_shared<RangeStore>(warp.cta->cluster);
    store->source = source_of(warp, op, lane, address, bytes);
    Touch touch;
    touch.async = true;
    touch.strong = kReduction(op) != kStore;
    store->target = global_at(warp, op, lane, target, bytes, Access::kWrite, nullptr, touch);
    if (!store->source || !store->target) continue;
    store->bytes = bytes;
    store->how = kReduction(op);
    store->type = kType(op);
    store->run = warp.run;
    store->instruction = op.instruction;
    keep(warp, op, lane, std::move(store));
  }
  ++warp.run->events;
}

void commit(Warp& warp, const Op&, u32 mask) {
  StoreGroup group;
  group.lanes = mask;
  group.number = ++warp.store_number;
  const auto others = [mask](const BulkStore& store) { return !(mask >> store.lane & 1); };
  const auto first = std::stable_partition(warp.open_stores.begin(), warp.open_stores.end(), others);
  group.stores.assign(first, warp.open_stores.end());
  warp.open_stores.erase(first, warp.open_stores.end());
  warp.store_groups.push_back(std::move(group));
  count_issued(warp);
}

void complete(const std::vector<BulkStore>& stores) {
  for (const BulkStore& store : stores) {
    if (std::exchange(store.work->done, true)) continue;
    store.work->complete();
  }
}

void report_unawaited(Warp& warp, const std::vector<BulkStore>& stores) {
  if (!warp.run->options.races) return;
  for (const BulkStore& store : stores) {
    report(warp, *store.op, 1u << store.lane, detector::kAsyncRace, 0,
           "the thread ends while this bulk store reads shared memory, which ends with the CTA: no "
           "cp.async.bulk.wait_group waits for it");
  }
}

// A store that has read its source has also written its target here.
void wait(Warp& warp, const Op& op, u32 mask) {
  u64 kept = 0;
  for (std::size_t i = warp.store_groups.size(); i-- > 0;) {
    StoreGroup& group = warp.store_groups[i];
    if (group.lanes & mask) group.done |= kept++ >= static_cast<u64>(std::max<i64>(op.imm, 0));
  }
  for (const StoreGroup& group : warp.store_groups) {
    if (group.done) complete(group.stores);
  }
  while (!warp.store_groups.empty() && warp.store_groups.front().done) {
    warp.acquire(warp.stores(), warp.store_groups.front().number);
    warp.store_groups.pop_front();
  }
}

}  // namespace

// A thread that has ended cannot wait any more, and shared memory ends with its CTA. Stores whose group was waited for have
// read their source.
void finish_stores(Warp& warp) {
  for (const StoreGroup& group : warp.store_groups) {
    if (!group.done) report_unawaited(warp, group.stores);
    complete(group.stores);
  }
  warp.store_groups.clear();
  report_unawaited(warp, warp.open_stores);
  complete(warp.open_stores);
  warp.open_stores.clear();
}

void register_bulk_store(Registry& to) {
  to.add("cp.async.bulk.tensor.store", tensor_store, {kSource, kMap, kCoordinates, kReduction});
  to.add("cp.async.bulk.store", range_store, {kSource, kTarget, kBytes, kReduction, kType});
  to.add("cp.async.bulk.commit", commit, {});
  to.add("cp.async.bulk.wait", wait, {kPendingGroups});
}

}  // namespace emulator
