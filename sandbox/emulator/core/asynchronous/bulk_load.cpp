// Bulk copies into shared memory: tensors through tensor maps, and ranges of bytes from global or shared memory.
//
// A load completes bytes at an mbarrier. Under the latest interleaving it executes when no warp can make progress otherwise. To
// the race detector, the agent of its mbarrier's phase writes the target.
#include <cstring>
#include <utility>

#include "asynchronous/reduction.hpp"
#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr u32 kMaxClusterSize = 16;

constexpr Operand kTarget = address("target", Field::kA, Field::kP);
constexpr Operand kMbarrier = address("mbarrier", Field::kC, Field::kQ);
constexpr Operand kCtas = optional(slot("ctas", Field::kE, 2));  // mask of CTAs; the target's where there is none
constexpr Operand kBytes = slot("bytes", Field::kD, 4);
constexpr Operand kSource = address("source", Field::kB, 8);
// Only where the source lies in shared memory.
constexpr Operand kSharedSource = address("source", Field::kB, Field::kR, Field::kImm);
constexpr Operand kFromShared = number("", Field::kR);  // the bytes of that source's address, else 0
constexpr Operand kReduction = number("reduction", Field::kS, "Reduction");
constexpr Operand kType = number("type", Field::kS, "TensorType", 8);

// A target of a load: shared memory of one CTA, at the same offset in each.
struct Target {
  Cta* cta;
  u8* smem;
  u32 offset;
  MBarrier* barrier;
  u64 phase;
};

// Finds the targets of a load of `bytes` bytes and records the writes.
std::vector<Target> targets_of(Warp& warp, const Op& op, int lane, u32 bytes) {
  std::vector<Target> targets;
  const u32 address = shared_address(warp, op, kTarget, lane), barrier_address = shared_address(warp, op, kMbarrier, lane);
  const u32 own = address >> kRankShift;
  if (!kCtas(op) && own >= kMaxClusterSize) {
    shared_range(warp, op, lane, address, bytes, Access::kWrite, nullptr, {});  // reports it
    return targets;
  }
  const u32 ranks = kCtas(op) ? warp.lanes<u16>(kCtas(op))[lane] : 1u << own;
  for (u32 rank = 0; rank < kMaxClusterSize; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    const u32 there = (address & kOffsetMask) | rank << kRankShift;
    const u32 at = kCtas(op) ? (barrier_address & kOffsetMask) | rank << kRankShift : barrier_address;
    MBarrier* barrier = mbarrier_at(warp, op, lane, at, true);
    if (!barrier) continue;
    Touch touch;
    touch.async = true;
    touch.epoch = {barrier->component, static_cast<u32>(barrier->phase) + 1};
    u8* smem = shared_range(warp, op, lane, there, bytes, Access::kWrite, nullptr, touch);
    if (!smem) continue;
    const u32 offset = there & kOffsetMask;
    targets.push_back({cta_of(warp, there), smem - offset, offset, barrier, barrier->phase});
  }
  return targets;
}

struct Load : Pending {
  Load(Warp& warp, const Op& op, int lane, std::vector<Target> targets)
      : Pending(warp.cta->cluster), warp(warp), op(op), lane(lane), targets(std::move(targets)) {}

  virtual u32 bytes() const = 0;
  virtual void deliver(const Target& target) = 0;

  void complete() override {
    for (const Target& target : targets) {
      deliver(target);
      if (target.barrier->phase != target.phase) {
        report(
            warp, op, 1u << lane, detector::kTransactionMismatch, 0,
            "the mbarrier's phase completed before these " + std::to_string(bytes()) + " bytes arrived: too few were expected",
            target.barrier->instruction);
      }
      target.barrier->transactions -= bytes();
      target.barrier->delivered_at = op.instruction;
      settle_phase(*warp.run, *target.barrier);
    }
  }

  Warp& warp;
  const Op& op;
  int lane;
  std::vector<Target> targets;
};

struct TensorLoad : Load {
  using Load::Load;
  Box box;

  u32 bytes() const override { return box.bytes(); }

  void deliver(const Target& target) override {
    if (warp.run->trace) return;  // the operands of a trace are zero, and its products are not computed
    const u32 rows = box.rows(), width = box.row_bytes(), size = box.map->element_bytes;
    std::vector<u8> line(width);
    const Buffer* buffer = buffer_at(*warp.run, box.map->address);
    for (u32 row = 0; row < rows; ++row) {
      u32 begin = 0, end = 0;
      const u64 address = box.row(row, &begin, &end);
      std::fill(line.begin(), line.end(), box.map->nan_fill ? 0xFF : 0);
      if (begin < end && buffer) {
        const u64 from = address + static_cast<u64>(begin) * size - buffer->base, count = static_cast<u64>(end - begin) * size;
        if (from <= buffer->size && count <= buffer->size - from)
          std::memcpy(line.data() + begin * size, buffer->host + from, count);
      }
      each_chunk(box, target.offset, row,
                 [&](u32 done, u32 at, u32 step) { std::memcpy(target.smem + at, line.data() + done, step); });
      if (warp.run->options.taint) [[unlikely]] {
        std::fill(line.begin(), line.end(), 0);
        if (begin < end && buffer && buffer->taint) {
          const u64 from = address + static_cast<u64>(begin) * size - buffer->base,
                    count = static_cast<u64>(end - begin) * size;
          buffer->taint->read(from, count, line.data() + begin * size);
        }
        each_chunk(box, target.offset, row,
                   [&](u32 done, u32 at, u32 step) { std::memcpy(target.cta->taint.data() + at, line.data() + done, step); });
      }
    }
  }
};

struct RangeLoad : Load {
  using Load::Load;
  const u8* source = nullptr;
  const Cta* from = nullptr;  // whose shared memory the source is; null: global memory
  u32 size = 0, how = kStore, type = kTypeU8;

  u32 bytes() const override { return size; }
  void deliver(const Target& target) override {
    if (from && !from->live_warps) {
      report(warp, op, 1u << lane, detector::kClusterExit, 0,
             "a bulk copy reads shared memory of CTA rank " + std::to_string(from->rank) + ", which has ended");
    }
    u8* to = target.smem + target.offset;
    if (warp.run->options.taint) [[unlikely]] {
      move_taint(*warp.run, *cluster, to, source, size, combined_bytes(how, type), op.instruction);
    }
    put(to, source, size, how, type);
  }
};

void tensor_load(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    Box box;
    if (!find_box(warp, op, lane, &box, false)) continue;
    if (!aligned(warp, op, lane, shared_address(warp, op, kTarget, lane), 128, "the target of a tensor copy")) continue;
    touch_rows(warp, op, lane, box, Access::kRead);
    auto load = std::make_shared<TensorLoad>(warp, op, lane, targets_of(warp, op, lane, box.bytes()));
    load->box = box;
    warp.run->enqueue(std::move(load));
  }
  ++warp.run->events;
}

void range_load(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 bytes = warp.lanes<u32>(kBytes(op))[lane];
    if (bytes % 16 || !aligned(warp, op, lane, shared_address(warp, op, kTarget, lane), 16, "the target of a bulk copy")) {
      report(warp, op, 1u << lane, detector::kMisaligned, 0,
             "a bulk copy of " + std::to_string(bytes) + " bytes, not a multiple of 16");
      continue;
    }
    if (!bytes) continue;
    bool poison = false;
    const u8* source = nullptr;
    if (kFromShared(op)) {
      Touch touch;
      touch.async = true;
      source =
          shared_range(warp, op, lane, shared_address(warp, op, kSharedSource, lane), bytes, Access::kRead, &poison, touch);
    } else {
      const u64 address = warp.lanes<u64>(kSource(op))[lane] + static_cast<u64>(op.imm);
      if (address % 16) {
        report(warp, op, 1u << lane, detector::kMisaligned, address, "the source of a bulk copy must lie on 16 bytes");
        continue;
      }
      Touch touch;
      touch.async = true;
      source = global_at(warp, op, lane, address, bytes, Access::kRead, &poison, touch);
    }
    if (!source) continue;
    auto load = std::make_shared<RangeLoad>(warp, op, lane, targets_of(warp, op, lane, bytes));
    load->source = source;
    if (kFromShared(op)) load->from = cta_of(warp, shared_address(warp, op, kSharedSource, lane));
    load->size = bytes;
    load->how = kReduction(op) & 0xFF;
    load->type = kType(op);
    warp.run->enqueue(std::move(load));
  }
  ++warp.run->events;
}

}  // namespace

void register_bulk_load(Registry& to) {
  to.add("cp.async.bulk.tensor.load", tensor_load, {kTarget, kMap, kCoordinates, kMbarrier, kCtas});
  to.add("cp.async.bulk.load", range_load, {kTarget, kSource, kBytes, kMbarrier, kCtas});
  to.add("cp.async.bulk.shared", range_load, {kTarget, kSharedSource, kBytes, kMbarrier, kCtas, kReduction, kType});
}

}  // namespace emulator
